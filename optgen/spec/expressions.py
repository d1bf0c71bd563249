"""Translate Python expressions into IR, in the author's order. Nothing is evaluated."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from optgen.ir.algorithm import Hyper
from optgen.ir.kinds import AxesError
from optgen.ir.nodes import Call, Const, Expr, Place, Ref, refs
from optgen.ir.ops import OPS
from optgen.spec.errors import did_you_mean
from optgen.spec.literals import compute_finite, constant_number, value_of
from optgen.spec.scope import Scope, as_fact, implied, may_be_none, type_of, why_not_a_number
from optgen.spec.source import Source
from optgen.spec.substitutes import Names, expression_hint

BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.Mod: "%",
    ast.MatMult: "@",
}
MAX_RULE_SIZE = 3000
"""The largest number of names, numbers and ops in a rule. Compile time grows superlinearly."""

_COMPARE = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}

_Side: TypeAlias = tuple[ast.expr, Expr]
"""One side of a comparison: its syntax tree, and its expression."""


_KNOWN_NUMBERS = {"pi": math.pi, "tau": math.tau}
"""Numbers that have names in other languages, for hints."""


_INPUTS = {
    **dict.fromkeys(("p", "param", "theta", "w"), ("param", "the parameter")),
    **dict.fromkeys(("g", "grad", "gradient"), ("grad", "the gradient")),
}
"""Usual names of a rule's inputs, for hints."""


class Expressions:
    """Reader of expressions. A subclass reads calls and linear algebra."""

    def __init__(self, source: Source, scope: Scope) -> None:
        self.source = source
        self.scope = scope

    def call(self, node: ast.Call) -> Expr:
        raise NotImplementedError

    def linear_algebra(self, node: ast.expr, op: str, arguments: Sequence[ast.expr]) -> Expr:
        raise NotImplementedError

    def number(self, node: ast.expr) -> Expr:
        """Read an expression that must be a number or a tensor."""
        return self._as_number(node, self.value(node))

    def _as_number(self, node: ast.expr, value: Expr) -> Expr:
        """Return the value; raise a SpecError if it is neither a number nor a tensor."""
        problem, hint = why_not_a_number(value, self.scope)
        if problem:
            self.source.error(node, f"`{self.source.quote(node)}` {problem}", hint)
        return self.not_none(node, value)

    def not_none(self, node: ast.expr, value: Expr) -> Expr:
        """Return the value; raise a SpecError if it may be None here."""
        if may_be_none(value, self.scope):
            quote = self.source.quote(node)
            hint = f"test it first: if {quote} is not None: …"
            self.source.error(node, f"`{quote}` may be None here", hint)
        return value

    def value(self, node: ast.expr) -> Expr:
        """Read any expression. If it consists of constants, its value must be finite."""
        self.scope.num_nodes += 1
        if self.scope.num_nodes > MAX_RULE_SIZE:
            message = f"the rule has more than {MAX_RULE_SIZE:,} names, numbers and ops"
            hint = "each call of a helper counts; is it one algorithm?"
            self.source.error(node, message, hint)
        value = self._value(node)
        compute_finite(node, self.source, lambda: value_of(value))
        check_arguments(self.source, value)
        return self._with_fitting_operands(node, value)

    def _with_fitting_operands(self, node: ast.expr, value: Expr) -> Expr:
        """Return the value; raise a SpecError if the shapes of its operands do not fit."""
        try:
            self.scope.kind(value)
        except AxesError as error:
            self.source.error(node, str(error), error.hint)
        return value

    def _value(self, node: ast.expr) -> Expr:
        place = self.source.place(node)
        match node:
            case ast.Constant(value=int() | float() as value):
                return Const(
                    compute_finite(node, self.source, lambda: constant_number(value)), place
                )
            case ast.Constant(value=None):
                return Const(None, place)
            case ast.Constant(value=str() as text):
                return Const(text, place)
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.number(operand)
                if isinstance(inner, Const) and isinstance(inner.value, int | float):
                    return Const(-inner.value, place)
                return Call("neg", (inner,), place)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.number(operand)
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                return self.linear_algebra(node, "@", (left, right))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return Call(BINARY[type(op)], (self.number(left), self.number(right)), place)
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.condition(node)
            case ast.Subscript(value=ast.Name() as values, slice=ast.Constant(value=int() as i)):
                return self._item(node, values, i)
            case ast.Call():
                return self.call(node)
        self.refuse(node)

    def condition(self, node: ast.expr) -> Expr:
        """Read an expression that is true or false."""
        return self._with_fitting_operands(node, self._condition(node))

    def _condition(self, node: ast.expr) -> Expr:
        place = self.source.place(node)
        match node:
            case ast.BoolOp(op=op, values=values):
                logic = "and" if isinstance(op, ast.And) else "or"
                return self._join(logic, self._read_operands_in_turn(logic, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Call("not", (self.condition(operand),), place)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                for comparison, right in zip(ops, rights, strict=True):
                    self._check_comparison(node, comparison, right)
                sides = [(side, self.value(side)) for side in (left, *rights)]
                pairs = zip(ops, sides, sides[1:], strict=False)
                return self._join("and", [self._compare(node, *pair) for pair in pairs])
        value = self.value(node)
        if isinstance(value, Const):
            self.source.error(node, "this condition is a constant", "leave it out")
        if type_of(value, self.scope) == "truth":
            return value
        problem, hint = why_not_a_number(value, self.scope)
        if problem:
            self.source.error(node, f"`{self.source.quote(node)}` {problem}", hint)
        return self._nonzero_test(value)

    def _nonzero_test(self, value: Expr) -> Expr:
        """Return the condition that a number is neither None nor 0."""
        differs = Call("!=", (value, Const(0)), value.place)
        item = self._unpacked_item(value)
        match item:
            case Call("item", (Ref(name), Const(int() as index))):
                hyper = self.scope.algorithm.hyper(name)
                if hyper is not None and hyper.may_be_none(index):
                    exists = Call("not", (Call("is_none", (item,), value.place),), value.place)
                    return Call("and", (exists, differs), value.place)
        return Call("truth", (value,), value.place) if isinstance(value, Ref) else differs

    def _unpacked_item(self, value: Expr) -> Expr:
        """Return the tuple item that a variable was unpacked from (a, b = eps); else the value."""
        return self.scope.items.get(value.name, value) if isinstance(value, Ref) else value

    def _read_operands_in_turn(self, logic: str, nodes: list[ast.expr]) -> list[Expr]:
        """Read the operands of and/or. Each operand may rely on the results of earlier ones."""
        known_before, conditions = self.scope.known_true, list[Expr]()
        for node in nodes:
            condition = self.condition(node)
            conditions.append(condition)
            holds_for_next = condition if logic == "and" else Call("not", (condition,))
            self.scope.known_true |= implied(holds_for_next)
        self.scope.known_true = known_before
        return conditions

    def _join(self, logic: str, conditions: list[Expr]) -> Expr:
        """Return the conditions joined by and/or."""
        result, *rest = conditions
        for condition in rest:
            result = Call(logic, (result, condition), condition.place)
        return result

    def _check_comparison(self, node: ast.Compare, op: ast.cmpop, right: ast.expr) -> None:
        """Check the operator of a comparison before its sides are read."""
        right_is_none = isinstance(right, ast.Constant) and right.value is None
        if isinstance(op, ast.Is | ast.IsNot):
            if not right_is_none:
                self.source.error(right, "`is` compares with None only", "write == for values")
        elif type(op) not in _COMPARE:
            hint = "use < <= > >= == != or is None"
            self.source.error(node, "this comparison is not in the language", hint)
        elif right_is_none:
            message = f"`{_COMPARE[type(op)]}` does not compare with None"
            self.source.error(right, message, "write `is None`")

    def _compare(self, node: ast.Compare, op: ast.cmpop, left: _Side, right: _Side) -> Expr:
        """Return one comparison of a chain."""
        place = self.source.place(node)
        if isinstance(op, ast.Is | ast.IsNot):
            return self._none_test(*left, place, negated=isinstance(op, ast.IsNot))
        comparison = _COMPARE[type(op)]
        choice = self.scope.hyper_of(left[1])
        if choice is None or choice.type != "choice":
            sides = (self._as_number(*left), self._as_number(*right))
            return as_fact(Call(comparison, sides, place), self.scope.algorithm)
        if comparison not in ("==", "!="):
            hint = "compare it by == or !="
            self.source.error(node, f"`{choice.name}` is a choice, which has no order", hint)
        return Call(comparison, (left[1], self._choice_string(choice, *right)), place)

    def _none_test(self, node: ast.expr, expr: Expr, place: Place, *, negated: bool) -> Expr:
        """Return the test whether a hyperparameter, or an item of one, is None."""
        value = self._unpacked_item(expr)
        hyper_ref = value.args[0] if isinstance(value, Call) and value.op == "item" else value
        hyper = self.scope.hyper_of(hyper_ref)
        if hyper is None:
            self.source.error(node, "only a hyperparameter can be None", "hyper(…, optional=True)")
        if hyper_ref is value and isinstance(hyper.default, tuple):
            hint = f"test one of its numbers: `{hyper.name}[0] is None`"
            self.source.error(node, f"`{hyper.name}` is a tuple, which is never None", hint)
        test = Call("is_none", (value,), place)
        return Call("not", (test,), place) if negated else test

    def _choice_string(self, choice: Hyper, node: ast.expr, value: Expr) -> Expr:
        """Return the right side of a comparison with a choice: one of the choice's strings."""
        if not isinstance(value, Const) or value.value not in choice.choices:
            known = [f'"{c}"' for c in choice.choices if c is not None]
            hint = did_you_mean(self.source.quote(node), known, f"one of {', '.join(known)}")
            self.source.error(node, f"`{choice.name}` is never {self.source.quote(node)}", hint)
        return value

    def _name(self, node: ast.Name, name: str) -> Expr:
        scope = self.scope
        if scope.helper_values is not None and name in scope.helper_values:  # inside a helper
            return scope.helper_values[name]
        if name in scope.constants:
            constant = scope.constants[name]
            if isinstance(constant, tuple):
                self.source.error(node, f"`{name}` holds several numbers", "give each its own name")
            return Const(constant, self.source.place(node))
        if scope.in_helper or name not in scope.kinds:
            self._unknown(node, name)
        self.check_exists(node, name)
        scope.read.add(name)
        return Ref(name, 0, self.source.place(node))

    def _unknown(self, node: ast.Name, name: str) -> NoReturn:
        if self.scope.in_helper and name in self.scope.kinds:
            self.source.error(
                node,
                f"unknown name `{name}`",
                "a helper sees its arguments and the file's constants: pass it as an argument",
            )
        if name in self.scope.maybe_undefined:
            self.source.error(
                node,
                f"`{name}` is undefined on this path",
                "assign it in both arms of the if, or before it",
            )
        if name in OPS or name in self.scope.helpers:
            self.source.error(node, f"`{name}` is a function", f"call it: {name}(…)")
        algorithm = self.scope.algorithm
        if name == "t" and algorithm.step is None and not algorithm.is_function:
            hint = "add the step count to the inputs: p, g, t, /"
            self.source.error(node, "unknown name `t`", hint)
        if name in _KNOWN_NUMBERS:
            value = _KNOWN_NUMBERS[name]
            hint = f"write it above the rule: {name.upper()} = {value}, and read it"
            self.source.error(node, f"unknown name `{name}`", f"{hint} as {name.upper()}")
        if name in _INPUTS and not algorithm.is_function:
            attribute, meaning = _INPUTS[name]
            hint = f"{meaning} is called `{getattr(algorithm, attribute)}` in this rule"
            self.source.error(node, f"unknown name `{name}`", hint)
        same_cell = ", or put it into the same cell" if self.source.is_excerpt else ""
        otherwise = f"declare it in the signature or assign it{same_cell}"
        self.source.error(
            node,
            f"unknown name `{name}`",
            did_you_mean(name, self.scope.visible_names(), otherwise),
        )

    def _item(self, node: ast.Subscript, tuple_name: ast.Name, index: int) -> Expr:
        items = self.value(tuple_name)
        hyper = self.scope.hyper_of(items)
        if hyper is None or hyper.type != "tuple":
            hint = f"use `{tuple_name.id}` without an index"
            self.source.error(node, "only a tuple hyperparameter has items", hint)
        if not 0 <= index < hyper.size:
            hint = f"it has items 0 to {hyper.size - 1}"
            self.source.error(
                node, f"`{tuple_name.id}` has no item {self.source.quote(node.slice)}", hint
            )
        return Call("item", (items, Const(index)), self.source.place(node))

    def refuse(self, node: ast.expr) -> NoReturn:
        """Raise the SpecError for an expression that the language does not have."""
        self.source.error(
            node,
            f"`{self.source.quote(node)}` is not in the language",
            expression_hint(node, self._names()),
        )

    def _names(self) -> Names:
        """Return the names of the rule that hints use."""
        algorithm = self.scope.algorithm
        hypers = tuple(hyper.name for hyper in algorithm.hypers if not hyper.set_by_step)
        symbols_by_key = {state.key: state.symbol for state in algorithm.states}
        return Names(algorithm.param, algorithm.grad, hypers, symbols_by_key)

    def check_exists(self, node: ast.expr, name: str) -> None:
        """Check that a state with `when=` is used only where it exists."""
        state = self.scope.algorithm.state(name)
        condition = state.condition if state else None
        if state is None or condition is None or condition in self.scope.known_true:
            return
        if state.step_argument:
            hint = f"test it first: if given({name}): …"
            self.source.error(node, f"`{name}` may be absent here", hint)
        test = condition.test(self.scope.algorithm.param)
        message = f"`{name}` exists only when {test if condition.limit else condition}"
        self.source.error(node, message, f"test it first: if {test}: …")

    def check_branch(self, node: ast.expr, condition: Expr) -> None:
        """Check that an `if` can test a condition: one value per parameter, and no reduction."""
        kind = self.scope.kind(condition)
        if kind.is_tensor:
            self.source.error(
                node, "`if` on a tensor has no single value", "write where(condition, a, b)"
            )
        if not kind.is_scalar:
            owners = {
                s.symbol: "all groups" if s.of_all else "the group"
                for s in self.scope.algorithm.group_states()
            }
            read = [ref.name for ref in refs(condition) if ref.name in owners]
            value = "the result of a reduction"
            if read:
                value = f"`{read[0]}`, a state of {owners[read[0]]}"
            inputs = {state.symbol for state in self.scope.algorithm.extra_inputs()}
            if read_inputs := [ref.name for ref in refs(condition) if ref.name in inputs]:
                value = f"`{read_inputs[0]}`, a number on the device"
            message = f"`if` on {value}, which is known too late"
            self.source.error(node, message, "write where(condition, a, b)")


@dataclass(frozen=True)
class _Range:
    """The values that an argument of an op may have, by its position."""

    op: str
    position: int
    holds: Callable[[float], bool]
    message: str
    hint: str


_ROOT_HINT = "inverse_root(x, 4, eps) is (x + eps I)^(-1/4)"
_DIVISOR_HINT = "divide by a number that is not 0"
_RANGES = (
    _Range("/", 1, lambda n: n != 0, "a quotient by 0", _DIVISOR_HINT),
    _Range("%", 1, lambda n: n != 0, "a remainder by 0", _DIVISOR_HINT),
    _Range("inverse_root", 1, lambda n: n > 0, "the root {} is not above 0", _ROOT_HINT),
    _Range(
        "inverse_root",
        2,
        lambda eps: eps >= 0,
        "eps is {}, and the eigenvalue 0 would become negative",
        "write 0 or more: eps is added to the eigenvalues",
    ),
    _Range(
        "orthogonalize",
        2,
        lambda steps: steps >= 0 and steps % 1 == 0,
        "{} is no number of steps",
        "write a whole number, such as 5",
    ),
    _Range(
        "orthogonalize",
        3,
        lambda eps: eps >= 0,
        "eps is {}, below 0",
        "write 0 or more: it is the least norm to divide by",
    ),
)


def check_arguments(source: Source, value: Expr) -> None:
    """Check the arguments of a call that consist of constants.

    Raises:
        SpecError: an argument is out of the range of its op.
    """
    if not isinstance(value, Call):
        return
    for allowed in _RANGES:
        if allowed.op == value.op:
            argument = value.args[allowed.position]
            number = value_of(argument)
            if number is not None and not allowed.holds(number):
                place = argument.place or value.place
                source.error_at(place, allowed.message.format(number), allowed.hint)
    if value.op == "clamp":
        low, high = map(value_of, value.args[1:])
        if low is not None and high is not None and low > high:
            message = f"`clamp` between {low} and {high} is always {high}"
            source.error_at(value.place, message, "write the lower bound first: clamp(x, -1, 1)")
