"""Print expressions and statements as Python: numbers, and ops of torch on tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optgen.ir.nodes import Assign, Call, Const, Expr, If, Linear, Ref, Term
from optgen.ir.ops import ATOM, MAXIMA, PRECEDENCE, STORAGE_OPS
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.python.literals import (
    Quote,
    comment,
    exact_literal,
    not_shown,
    shown_after,
)
from optgen.passes.linear_forms import is_number, split_sign
from optgen.passes.torch_ops import (
    Alias,
    Branch,
    Instruction,
    Op,
    Operand,
    Operation,
    Ops,
    Reduce,
)

_PROPERTIES = {
    "ndim": "{0}.dim()",
    "numel": "{0}.numel()",
    "rows": "rows({0})",
    "cols": "cols({0})",
    "machine_eps": "torch.finfo({0}.dtype).eps",
}
_COMPARISON = PRECEDENCE["<"]
_OPPOSITES = {"==": "!=", "!=": "=="}
"""Comparisons with an opposite. The others have none: both `<` and `>=` of a NaN are false."""


@dataclass(frozen=True)
class PythonPrinter:
    """Printer of expressions. `names` replaces variables, `functions` replaces function names."""

    names: Mapping[str, str]
    functions: Mapping[str, str]

    def text(self, expr: Expr) -> str:
        """Return an expression as Python."""
        return self._text(expr)[0]

    def _text(self, expr: Expr) -> tuple[str, int]:
        """Return an expression as Python, and its precedence."""
        match expr:
            case Const(value):
                text = exact_literal(value)
                return text, PRECEDENCE["neg"] if text.startswith("-") else ATOM
            case Ref(name):
                return self.names.get(name, name), ATOM
            case Call("truth", (a,)):
                return self._text(a)
            case Call("is_none", (a,)):
                return f"{self._operand(a, _COMPARISON + 1)} is None", _COMPARISON
            case Call("not", (Call("is_none", (a,)),)):
                return f"{self._operand(a, _COMPARISON + 1)} is not None", _COMPARISON
            case Call("fresh", (Ref(name),)):
                return f"fresh_{name}", ATOM
            case Call("copy", (a,)):
                return f"{self._operand(a, ATOM)}.clone()", ATOM
            case Call(word, (a,)) if word in _PROPERTIES:
                return _PROPERTIES[word].format(self._operand(a, ATOM)), ATOM
            case Call("item", (values, Const(index))):
                return f"{self.text(values)}[{index}]", ATOM
            case Call("not", (Call(word, args),)) if word in _OPPOSITES:
                return self._text(Call(_OPPOSITES[word], args))
            case Call("neg" | "not" as word, (a,)):
                sign = "-" if word == "neg" else "not "
                return sign + self._operand(a, PRECEDENCE[word]), PRECEDENCE[word]
            case Call(word, (a, b)) if word in PRECEDENCE:
                precedence = PRECEDENCE[word]
                is_right_associative = word == "**"
                left = self._operand(a, precedence + is_right_associative)
                right_precedence = precedence + (not is_right_associative)
                if word == "%":  # a % b * c would mean (a % b) * c
                    right_precedence = PRECEDENCE["*"] + 1
                return f"{left} {word} {self._operand(b, right_precedence)}", precedence
            case Call(word, args):
                arguments = ", ".join(self.text(a) for a in args)
                return f"{self.functions.get(word, word)}({arguments})", ATOM
            case Linear():
                return self._linear(expr)

    def _operand(self, expr: Expr, min_precedence: int) -> str:
        """Return an expression's text, in parentheses if its precedence is too low."""
        text, precedence = self._text(expr)
        return text if precedence >= min_precedence else f"({text})"

    def _linear(self, form: Linear) -> tuple[str, int]:
        """Return a sum of terms as Python, with minus signs between terms, and its precedence."""
        text, precedence = "", 0
        for term in form.terms:
            is_negative, unsigned, precedence = self._term(term)
            if not text:
                text = f"-{unsigned}" if is_negative else unsigned
            else:
                text += f" - {unsigned}" if is_negative else f" + {unsigned}"
        if len(form.terms) > 1:
            return text, PRECEDENCE["+"]
        return text, min(precedence, PRECEDENCE["neg"]) if text.startswith("-") else precedence

    def _term(self, term: Term) -> tuple[bool, str, int]:
        """Return whether a term is negative, its text without the sign, and the precedence."""
        is_negative, coefficient = split_sign(term.coefficient)
        factors: list[Expr] = [] if is_number(coefficient, 1) and term.factors else [coefficient]
        product: Expr
        product, *rest = [*factors, *term.factors]
        for factor in rest:
            product = Call("*", (product, factor))
        for divisor in term.divisors:
            product = Call("/", (product, divisor))
        text, precedence = self._text(product)
        return is_negative, (f"({text})" if precedence < PRECEDENCE["*"] else text), precedence


def statements(
    block: Sequence[Assign | If | Ops | Branch],
    printer: PythonPrinter,
    print_statement: Callable[[Any], list[str]],
    indent: str = "",
    shown: Quote = (),
) -> list[str]:
    """Return a program or instructions as Python, each statement below its quote as a comment.

    `print_statement` returns the lines of a statement that is no branch. A comment equal to the
    first line is left out, and so is one that stands above the statements before (`shown`).
    """
    lines: list[str] = []
    for stmt in block:
        if isinstance(stmt, If | Branch):
            lines += _branch(stmt, printer, print_statement, indent)
            shown = ()
            continue
        printed_lines = print_statement(stmt)
        new = not_shown(stmt.quote, shown)
        lines += [indent + comment(q) for q in new if q not in printed_lines[:1]]
        shown = shown_after(stmt.quote, shown)
        lines += [indent + text for text in printed_lines]
    return lines


def shown_below(block: Sequence[Assign | If], shown: Quote) -> Quote:
    """Return the lines of the rule that stand above what comes after a program."""
    for stmt in block:
        shown = () if isinstance(stmt, If) else shown_after(stmt.quote, shown)
    return shown


def _branch(
    stmt: If | Branch,
    printer: PythonPrinter,
    print_statement: Callable[[Any], list[str]],
    indent: str,
) -> list[str]:
    """Return an `if` with its arms. Two arms in a row with the same lines are one."""

    def arm_lines(arm: Sequence[Assign | If | Ops | Branch]) -> list[str]:
        return statements(arm, printer, print_statement, f"{indent}    ")

    condition, then, orelse = _arms(stmt)
    then_lines = arm_lines(then)
    while len(orelse) == 1 and isinstance(orelse[0], If | Branch):
        next_condition, next_then, next_orelse = _arms(orelse[0])
        if arm_lines(next_then) != then_lines:
            break
        condition, orelse = Call("or", (condition, next_condition)), next_orelse
    lines = [f"{indent}if {printer.text(condition)}:", *then_lines]
    if len(orelse) == 1 and isinstance(orelse[0], If | Branch):
        first, *rest = _branch(orelse[0], printer, print_statement, indent)
        return [*lines, f"{indent}el{first.removeprefix(indent)}", *rest]
    if orelse:
        lines += [f"{indent}else:", *arm_lines(orelse)]
    return lines


def _arms(stmt: If | Branch) -> tuple[Expr, Sequence[Any], Sequence[Any]]:
    """Return a condition and both arms. If the first arm is empty, the condition is negated."""
    if stmt.then:
        return stmt.condition, stmt.then, stmt.orelse
    match stmt.condition:
        case Call("not", (condition,)):
            return condition, stmt.orelse, ()
    return Call("not", (stmt.condition,)), stmt.orelse, ()


_PRINTER = PythonPrinter({}, {})
_METHODS = {
    "**": "pow",
    "%": "remainder",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "and": "logical_and",
    "or": "logical_or",
    "not": "logical_not",
}
_FILLS = {"fill_where": "{0}", "fill_where_not": "~{0}"}
"""Words that fill a number into a tensor, with the mask of the elements for a condition."""
_SCALAR_KEYWORDS = {"add": "alpha", "addcmul": "value", "addcdiv": "value"}
_PER_TENSOR = {"where", "clone", "full_like", "new_full", "atan2", *_FILLS, *STORAGE_OPS}
_PER_TENSOR |= {*_METHODS.values()} - {"pow"}
"""Functions and methods without a `_foreach_` form."""


def forloop_lines(instructions: tuple[Instruction, ...], shown: Quote = ()) -> list[str]:
    """Return the lines of operations on one tensor. Method calls on one result share a line."""
    return statements(instructions, _PRINTER, _forloop_operations, shown=shown)


def foreach_lines(instructions: tuple[Instruction, ...], shown: Quote = ()) -> list[str]:
    """Return the lines of operations on lists: each is one call, or else a list comprehension."""

    def lines(ops: Ops) -> list[str]:
        return [_foreach_line(operation) for operation in ops.operations]

    return statements(instructions, _PRINTER, lines, shown=shown)


def _forloop_operations(ops: Ops) -> list[str]:
    """Return the lines of one statement on one tensor."""
    lines: list[str] = []
    last_target = ""
    for operation in ops.operations:
        if isinstance(operation, Reduce):
            lines.append(_forloop_reduction(operation))
            last_target = ""
            continue
        if isinstance(operation, Alias):
            # An in-place call on the last line returns the tensor, so its result gets the name.
            if operation.source == last_target and not lines[-1].startswith(f"{last_target} ="):
                lines[-1] = f"{operation.target} = {lines[-1]}"
            else:
                lines.append(f"{operation.target} = {operation.source}")
            last_target = ""
            continue
        # A method whose source is not also an argument can be chained.
        is_method = operation.function not in ("maximum", "minimum")
        can_be_chained = is_method and operation.source not in operation.args
        if operation.inplace and operation.source == last_target and can_be_chained:
            lines[-1] += _method(operation)
        elif operation.inplace:
            lines.append(_call(operation))
        else:
            lines.append(f"{operation.target} = {_call(operation)}")
        last_target = operation.target
    return lines


def _forloop_reduction(operation: Reduce) -> str:
    """Return a reduction as Python; that of a block is added, or the maximum of both is taken."""
    target, result = operation.target, f"{reduction(operation)}({operation.source})"
    if operation.whole:
        return f"{target} = {result}.double()"
    if operation.function in MAXIMA:
        return f"torch.maximum({target}, {result}, out={target})"
    return f"{target}.add_({result})"


def reduction(operation: Reduce) -> str:
    """Return the function of optgen.runtime.eager.reductions that reduces one tensor."""
    name = "total" if operation.function == "sum" else operation.function
    return f"{operation.function}_of_squares" if operation.squared else name


def _call(op: Op) -> str:
    """Return an operation on one tensor as a call of torch."""
    name = _METHODS.get(op.function, op.function)
    if op.function == "where":
        return f"torch.where({', '.join([_condition(op.source), *map(_operand, op.args)])})"
    if op.function in STORAGE_OPS:
        return f"{op.function}({', '.join(map(_operand, (op.source, *op.args)))})"
    if op.function == "new_full":
        return f"{op.source}.new_full((), {_operand(op.args[0])})"
    if op.function == "full_like":
        return f"torch.full_like({op.source}, {_operand(op.args[0])})"
    if op.function in ("maximum", "minimum") and op.inplace:
        return f"torch.{name}({op.source}, {_operand(op.args[0])}, out={op.source})"
    if not isinstance(op.source, str):
        return f"torch.{name}({', '.join([_operand(op.source), *map(_operand, op.args)])})"
    return op.source + _method(op)


def _method(op: Op) -> str:
    if op.function in _FILLS:
        mask, number = map(_operand, op.args)
        return f".masked_fill_({_FILLS[op.function].format(mask)}, {number})"
    name = _METHODS.get(op.function, op.function)
    arguments = [_condition(a) if op.function in ("and", "or") else _operand(a) for a in op.args]
    if op.function == "add" and is_number(op.scalar, -1):
        name = "sub"
    elif op.function in _SCALAR_KEYWORDS and not is_number(op.scalar, 1):
        arguments.append(f"{_SCALAR_KEYWORDS[op.function]}={_PRINTER.text(op.scalar)}")
    return f".{name}{'_' if op.inplace else ''}({', '.join(arguments)})"


def _operand(operand: Operand) -> str:
    return operand if isinstance(operand, str) else _PRINTER.text(operand)


def _condition(operand: Operand) -> str:
    """Return a condition's text as a tensor, which torch needs."""
    return operand if isinstance(operand, str) else f"torch.tensor({_PRINTER.text(operand)})"


def _foreach_line(operation: Operation) -> str:
    """Return an operation on lists of tensors."""
    if isinstance(operation, Reduce):
        source = operation.source
        reductions = f"[{reduction(operation)}({source}) for {source} in {plural(source)}]"
        if operation.whole:
            return f"{operation.target} = torch.stack({reductions}).double()"
        function = "maximum" if operation.function in MAXIMA else "add"
        return f"torch._foreach_{function}_({plural(operation.target)}, {reductions})"
    if isinstance(operation, Alias):
        return f"{plural(operation.target)} = {plural(operation.source)}"
    name = _METHODS.get(operation.function, operation.function)
    if name in _PER_TENSOR or not isinstance(operation.source, str):
        return _per_tensor(operation)
    arguments = [
        plural(each) if isinstance(each, str) else _PRINTER.text(each)
        for each in (operation.source, *operation.args)
    ]
    if operation.function == "add" and is_number(operation.scalar, -1):
        name = "sub"
    elif operation.function == "add" and not is_number(operation.scalar, 1):
        arguments.append(f"alpha={_PRINTER.text(operation.scalar)}")
    elif operation.function in _SCALAR_KEYWORDS and not is_number(operation.scalar, 1):
        arguments.append(_PRINTER.text(operation.scalar))
    if name == "mul" and operation.inplace and not isinstance(operation.args[0], str):
        # The runtime's `scale_`, because `torch._foreach_mul_` would round the number to 16 bits.
        return f"scale_({', '.join(arguments)})"
    call = f"torch._foreach_{name}{'_' if operation.inplace else ''}({', '.join(arguments)})"
    return call if operation.inplace else f"{plural(operation.target)} = {call}"


def _per_tensor(op: Op) -> str:
    """Return a list comprehension for an op without a `_foreach_` function."""
    if op.function == "new_full":
        params = plural(str(op.source))
        number = f"{params}[0].new_full((), {_operand(op.args[0])})"
        return f"{plural(op.target)} = [{number}] * len({params})"
    tensors = [o for o in (op.source, *op.args) if isinstance(o, str)]
    names = list(dict.fromkeys(tensors))
    lists = ", ".join(plural(n) for n in names)
    iterable = lists if len(names) == 1 else f"zip({lists}, strict=True)"
    return f"{plural(op.target)} = [{_call(op)} for {', '.join(names)} in {iterable}]"
