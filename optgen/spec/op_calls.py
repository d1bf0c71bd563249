"""Read calls of ops, and check the number, shape and type of their arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

from optgen.contract.constants import NUM_SEEDS
from optgen.contract.states import RANK, Condition
from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.kinds import SHAPES, Axes, effective_rank, height, width
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Program,
    Ref,
    expressions,
    map_expressions,
    rebuild,
    walk,
)
from optgen.ir.ops import (
    CALLABLE_OPS,
    DRAWING_OPS,
    LINEAR_ALGEBRA,
    MATRIX_OP_OPTIONS,
    MATRIX_OPS,
    PROPERTIES,
    RANDOM_OPS,
    REDUCTIONS,
    STORAGE_OPS,
    WORDS,
)
from optgen.spec.errors import did_you_mean
from optgen.spec.expressions import Expressions
from optgen.spec.scope import SHAPE_NAMES, type_of
from optgen.spec.source import Source
from optgen.spec.substitutes import NO_SUBSTITUTE, UNSUPPORTED, function_hint, keyword_hint
from optgen.spec.wide_reductions import has_over, read_reduction_over

_MATRICES = tuple(axes for axes in SHAPES if "1" not in (height(axes), width(axes)))
"""Axes of values with several rows and columns."""


class OpCalls(Expressions):
    """Reader of calls. A subclass implements `inline`, for the helper functions of the file."""

    def inline(self, node: ast.Call, name: str) -> Expr:
        raise NotImplementedError

    def new_variable(self, name: str, value: Expr) -> Ref:
        """Assign a value to a new variable, so that it is computed once; return the variable.

        The variable has the name `name`, or `name` with a number.
        """
        variable, kind = self.scope.unused_name(name), self.scope.kind(value)
        self.scope.statements.append(Assign(Ref(variable), value, (), value.place))
        self.scope.kinds[variable] = kind
        self.scope.axes[variable] = kind.axes
        if type_of(value, self.scope) == "truth":
            self.scope.booleans.add(variable)
        return Ref(variable)

    def call(self, node: ast.Call) -> Expr:
        """Read a call of an op or of a helper."""
        if not isinstance(node.func, ast.Name):
            self.refuse(node)
        name = node.func.id
        if name in self.scope.helpers:
            return self.inline(node, name)
        if name == "given":
            return self._given(node)
        if name not in CALLABLE_OPS:
            self._refuse_function(node, name)
        if name in MATRIX_OPS:
            return Call(name, self._matrix_op_arguments(node, name), self.source.place(node))
        if has_over(node):
            return read_reduction_over(self, node, name)
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            hint = keyword_hint(name, node) or (
                f"write {self._call_form(name)}, without names or stars"
            )
            self.source.error(node, f"`{name}` takes positional arguments only", hint)
        arity = len(WORDS[name].arguments)
        if len(node.args) != arity:
            message = f"`{name}` takes {arity} argument{'s' * (arity > 1)}, not {len(node.args)}"
            hint = self._call_form(name)
            if len(node.args) == 2 and name in REDUCTIONS:  # torch's sum(x, 0)
                hint = function_hint(name, [*map(ast.unparse, node.args)])
            self.source.error(node, message, hint)
        return self._op_call(node, name)

    def _call_form(self, name: str) -> str:
        """Return the text of a call of an op with the names of its arguments, for hints."""
        return f"{name}({self.scope.algorithm.param})" if name in PROPERTIES else str(WORDS[name])

    def _refuse_function(self, node: ast.Call, name: str) -> NoReturn:
        """Raise the SpecError for an unknown function, with a suggestion."""
        functions = f"functions: {', '.join(CALLABLE_OPS)}"
        plain = name if name in UNSUPPORTED else name.removesuffix("_like")
        if plain in UNSUPPORTED:
            hint = UNSUPPORTED[plain] or NO_SUBSTITUTE
            self.source.error(node, f"the language has no `{name}`", hint)
        same_cell = f"if `{name}` is a helper of yours, put it into the same cell as the rule"
        callable_ops = [op for op in CALLABLE_OPS if self._could_call(node, op)]
        hint = did_you_mean(
            name,
            [*callable_ops, *self.scope.helpers],
            same_cell if self.source.is_excerpt else functions,
        )
        self.source.error(node, f"unknown function `{name}`", hint)

    def _could_call(self, node: ast.Call, op: str) -> bool:
        """Tell whether a call has the arguments of an op: the right number, or p for a property."""
        if op in PROPERTIES:
            param = self.scope.algorithm.param
            return [a.id for a in node.args if isinstance(a, ast.Name)] == [param]
        return len(node.args) == len(WORDS[op].arguments)

    def _op_call(self, node: ast.Call, name: str) -> Expr:
        """Read a call of an op whose number of arguments is right."""
        place = self.source.place(node)
        if name == "fresh":
            return self._fresh(node)
        if name in PROPERTIES:
            return Call(name, (self._property_argument(node, name),), place)
        if name in REDUCTIONS:
            return Call(name, (self._reduction_argument(node, name),), place)
        if name in LINEAR_ALGEBRA:
            return self.linear_algebra(node, name, node.args)
        if name in STORAGE_OPS:
            return read_storage_call(self, node, name)
        if name in RANDOM_OPS:
            return read_random_call(self, node, name)
        if name == "where":
            condition = self._where_condition(node.args[0])
            return Call(name, (condition, *(self.number(a) for a in node.args[1:])), place)
        return Call(name, tuple(self.number(a) for a in node.args), place)

    def _property_argument(self, node: ast.Call, name: str) -> Ref:
        """Return the argument of a property, which must be the parameter."""
        param = self.scope.algorithm.param
        value = self.value(node.args[0])
        if not isinstance(value, Ref) or value.name != param:
            message = f"`{name}` takes the parameter"
            self.source.error(node.args[0], message, f"write {name}({param})")
        if name in ("rows", "cols"):
            self.check_has_rows_and_columns(node, name)
        return Ref(param, 0, value.place)

    def _reduction_argument(self, node: ast.Call, name: str) -> Expr:
        """Read the argument of a reduction, which must have an axis to reduce."""
        value = self.number(node.args[0])
        axes = self.scope.kind(value).axes
        if name.startswith(("row_", "col_")):
            self.check_has_rows_and_columns(node, name)
        if self.scope.kind(Call(name, (value,))).axes is axes:
            shape_name = SHAPE_NAMES[axes]
            message = f"`{name}` of {shape_name} has nothing to reduce"
            magnitude = name.endswith(("norm", "rms", "max_abs"))
            hint = "its magnitude is abs(…)" if magnitude else f"leave {name} out"
            self.source.error(node.args[0], message, hint)
        return value

    def linear_algebra(self, node: ast.expr, op: str, arguments: Sequence[ast.expr]) -> Expr:
        """Read an op of linear algebra. It takes one or two matrices, and numbers."""
        self.check_has_rows_and_columns(node, op)
        values = tuple(map(self.number, arguments))
        if op not in ("@", "solve_triangular", "solve_transposed"):
            message = f"`{op}` takes a matrix and numbers"
            check_scalars(self, values[1:], arguments[1:], message)
        if op == "singular_vectors":
            rank = read_rank(self.source, self.scope.algorithm, values[1], arguments[1])
            values = (values[0], rank)
        if op in DRAWING_OPS:
            values = (values[0], *keys_of_draw(self, node, op, values[1:]))
        return Call(op, values, self.source.place(node))

    def _matrix_op_arguments(self, node: ast.Call, name: str) -> tuple[Expr, ...]:
        """Read the arguments of a matrix op: a tensor, a tuple of triples, two numbers, options."""
        options = self._matrix_op_options(node, name)
        self.check_has_rows_and_columns(node, name)
        tensor, coefficients, *numbers = node.args
        example = "ns_coefficients=hyper((3.4445, -4.775, 2.0315)); or three for each step in turn"
        if isinstance(coefficients, ast.Tuple | ast.List):
            message = f"`{name}` takes the name of a hyperparameter here"
            self.source.error(coefficients, message, f"declare it after `*`: {example}")
        value, triples = self.number(tensor), self.value(coefficients)
        if self.scope.kind(value).axes not in _MATRICES:
            message = f"`{name}` of {SHAPE_NAMES[self.scope.kind(value).axes]}"
            self.source.error(tensor, message, "it takes a tensor of the parameter's shape")
        hyper = self.scope.hyper_of(triples)
        if hyper is None or hyper.type != "tuple" or hyper.size % 3:
            self.source.error(coefficients, f"`{name}` takes a tuple of three numbers", example)
        scalars = [self.number(argument) for argument in numbers]
        message = f"`{name}` takes a tensor, a tuple and two numbers"
        check_scalars(self, scalars, numbers, message)
        if len(scalars) == 1:
            scalars.append(Const(0))
        return (value, triples, *scalars, *options)

    def _matrix_op_options(self, node: ast.Call, name: str) -> tuple[Expr, ...]:
        """Read the options of a matrix op, and check the number of the other arguments.

        Return no operands if all options have their defaults.
        """
        allowed, given = MATRIX_OP_OPTIONS, dict(WORDS[name].keywords)
        forms = " or ".join(f'{key}="{values[1]}"' for key, values in allowed.items())
        for keyword in node.keywords:
            values = allowed.get(keyword.arg or "")
            if values is None:
                message = f"`{name}` has no `{keyword.arg or '**'}`"
                self.source.error(keyword.value, message, f"it takes {forms} by name")
            if not isinstance(keyword.value, ast.Constant) or keyword.value.value not in values:
                message = f"`{keyword.arg}` of `{name}` is one of {', '.join(map(repr, values))}"
                hint = "write the text itself; for a choice, call the word in two branches"
                self.source.error(keyword.value, message, hint)
            given[str(keyword.arg)] = str(keyword.value.value)
        count = len(WORDS[name].arguments) - (given["divisor"] == "none")
        if len(node.args) != count or any(isinstance(a, ast.Starred) for a in node.args):
            by_none = ' with divisor="none", which divides by nothing' * (
                given["divisor"] == "none"
            )
            message = f"`{name}` takes {count} arguments{by_none}, not {len(node.args)}"
            form = ", ".join(WORDS[name].arguments[:count])
            self.source.error(node, message, f"{name}({form}, …)" if by_none else str(WORDS[name]))
        if given == WORDS[name].keywords:
            return ()
        place = self.source.place(node)
        if given["dtype"] == "parameter":
            param = Ref(self.scope.algorithm.param, 0, place)
            machine_eps = self.new_variable("machine_eps", Call("machine_eps", (param,), place))
            return Const(given["divisor"], place), machine_eps
        return Const(given["divisor"], place), Const(given["dtype"], place)

    def check_has_rows_and_columns(self, node: ast.expr, name: str) -> None:
        """Check that the parameter is known to have rows and columns here."""
        if Condition("factored") not in self.scope.known_true:
            param = self.scope.algorithm.param
            message = f"`{name}` needs a parameter with rows and columns"
            hint = f"say so: if factored({param}): …, or require(ndim({param}) == 2, …)"
            self.source.error(node, message, hint)

    def _where_condition(self, node: ast.expr) -> Expr:
        """Read the condition of a `where`: a comparison, since no op tests a tensor for truth."""
        condition = self.condition(node)
        if isinstance(condition, Call) and condition.op == "truth":
            hint = f"write {self.source.quote(node)} != 0"
            self.source.error(node, "`where` takes a comparison", hint)
        self.check_truths(condition)
        return condition

    def check_truths(self, condition: Expr) -> None:
        """Check that only numbers, not tensors, are tested for truth."""
        for expr in walk(condition):
            match expr:
                case Call("truth", (value,)) if not self.scope.kind(value).is_scalar:
                    message = "a tensor is used as a condition, but it is neither true nor false"
                    self.source.error_at(expr.place, message, "compare it: … != 0")

    def _given(self, node: ast.Call) -> Expr:
        """Read a test whether a step was handed an extra input."""
        states = [self.scope.algorithm.state(a.id) for a in node.args if isinstance(a, ast.Name)]
        if self.scope.helper_values is None and states and states[0] is not None and states[0].when:
            return Ref(states[0].when, 0, self.source.place(node))
        message = "`given` takes an extra input, and stands in the rule itself"
        hint = 'declare it before `/`: h=given("hessian"); a helper takes it as an argument'
        self.source.error(node, message, hint)

    def _fresh(self, node: ast.Call) -> Expr:
        """Read a test whether a state was created in this step."""
        match node.args[0]:
            case ast.Name(id=name):
                value = (self.scope.helper_values or {}).get(name, Ref(name))
                state = self.scope.algorithm.state(value.name) if isinstance(value, Ref) else None
                if isinstance(value, Ref) and state is not None and not state.step_argument:
                    self.check_exists(node.args[0], value.name)
                    if state.of_group:
                        owner = "every group" if state.of_all else "the group"
                        message = f"`fresh` of `{name}`, which {owner} has from its beginning"
                        hint = "count steps in another such state: k = k + 1"
                        self.source.error(node, message, hint)
                    return Call("fresh", (Ref(value.name),), self.source.place(node))
        hint = "write fresh(b) for a state b"
        self.source.error(node.args[0], "`fresh` takes a state", hint)


def check_scalars(
    reader: Expressions, values: Sequence[Expr], nodes: Sequence[ast.expr], message: str
) -> None:
    """Check that arguments are numbers that are known without reading a tensor."""
    for value, node in zip(values, nodes, strict=True):
        if not reader.scope.kind(value).is_scalar:
            hint = "write a number that is not computed from tensors"
            reader.source.error(node, message, hint)


_MAX_CALLS = 256  # eight bits of the generator's key hold the number of the call


def read_random_call(reader: Expressions, node: ast.Call, name: str) -> Expr:
    """Read a call of `random` or `random16`, and append the step count and the call's number."""
    if reader.scope.algorithm.is_function:
        hint = f"only a rule of an @optimizer may call {name}"
        reader.source.error(node, f"`{name}` counts steps, which a function does not", hint)
    seed_and_stream = [reader.number(argument) for argument in node.args]
    check_scalars(reader, seed_and_stream, node.args, f"`{name}` takes two numbers")
    return Call(name, keys_of_draw(reader, node, name, seed_and_stream), reader.source.place(node))


def keys_of_draw(
    reader: Expressions, node: ast.expr, name: str, seed_and_stream: Iterable[Expr]
) -> tuple[Expr, ...]:
    """Return the keys of a draw: seed, stream, step count, and the number of the call in the rule.

    `seed_and_stream` are as the author wrote them.

    Raises:
        SpecError: the rule has no step count, or too many draws.
    """
    algorithm, scope = reader.scope.algorithm, reader.scope
    if algorithm.step is None:
        hint = "add the step count to the inputs: p, g, t, /"
        reader.source.error(node, f"`{name}` needs the step count", hint)
    if scope.draw_count == _MAX_CALLS:
        message = f"more than {_MAX_CALLS} calls of `{name}`"
        reader.source.error(node, message, "draw once, and scale")
    step = Ref(algorithm.step, 0, reader.source.place(node))
    scope.read.add(algorithm.step)
    scope.draw_count += 1
    # A seed or stream becomes a whole number below `NUM_SEEDS`.
    remainders = (Call("%", (number, Const(NUM_SEEDS))) for number in seed_and_stream)
    keys = (Call("floor", (remainder,)) for remainder in remainders)
    return (*keys, step, Const(scope.draw_count - 1))


def number_calls(rule: Program) -> Program:
    """Return the rule with its draws numbered from 0, in the order of their appearance.

    The reader numbers draws as it reads them. Draws that do not get into the rule leave gaps.
    """
    old_numbers = (
        node.args[-1]
        for expr in expressions(rule)
        for node in walk(expr)
        if isinstance(node, Call) and node.op in DRAWING_OPS
    )
    new_numbers = {old: Const(new) for new, old in enumerate(dict.fromkeys(old_numbers))}

    def numbered(expr: Expr) -> Expr:
        inner = rebuild(expr, numbered)
        if isinstance(inner, Call) and inner.op in DRAWING_OPS:
            return replace(inner, args=(*inner.args[:-1], new_numbers[inner.args[-1]]))
        return inner

    return map_expressions(rule, numbered) if new_numbers else rule


def read_storage_call(reader: Expressions, node: ast.Call, name: str) -> Expr:
    """Read a call, and append the machine epsilon of the dtype to its arguments.

    The first argument and the result are tensors.
    """
    place = reader.source.place(node)
    if reader.scope.algorithm.is_function:
        hint = f"only a rule of an @optimizer may call {name}"
        message = f"`{name}` rounds to a parameter's dtype, but a function has lists"
        reader.source.error(node, message, hint)
    values = [reader.number(argument) for argument in node.args]
    axes = reader.scope.kind(values[0]).axes
    if axes is not Axes.TENSOR:
        hint = "a parameter's dtype is that of its elements: leave the call out"
        reader.source.error(node.args[0], f"`{name}` of {SHAPE_NAMES[axes]}", hint)
    eps = Call("machine_eps", (Ref(reader.scope.algorithm.param, 0, place),), place)
    return Call(name, (*values, eps), place)


_HINT = "declare rank=hyper(128, ge=1)"


def check_rank(source: Source, algorithm: Algorithm) -> None:
    """Check that a rule with matrices of the rank declares `rank`, a whole number of at least 1.

    Raises:
        SpecError: the rule has no such hyperparameter, or it is no such number.
    """
    for state in algorithm.matrix_states():
        if RANK in state.shape and algorithm.hyper(RANK) is None:
            message = f"`{state.symbol}` has an axis of the rank, but the rule has no `{RANK}`"
            source.error_at(state.place, message, f"{_HINT} after the `*`")
    hyper = algorithm.hyper(RANK)
    if hyper is not None and algorithm.has_rank:
        _check_number(source, hyper)


def read_rank(source: Source, algorithm: Algorithm, value: Expr, node: ast.expr) -> Expr:
    """Check that an argument is `rank`; return it, limited by the parameter's rows and columns.

    Raises:
        SpecError: the argument is something else, or the hyperparameter is no whole number.
    """
    hyper = algorithm.hyper(RANK)
    if not isinstance(value, Ref) or value.name != RANK or hyper is None:
        message = f"the number of vectors is the hyperparameter `{RANK}`"
        source.error(node, message, f"write singular_vectors(x, {RANK}), and {_HINT}")
    _check_number(source, hyper)
    return effective_rank(algorithm.param)


def _check_number(source: Source, hyper: Hyper) -> None:
    problem = ""
    lower_bound = hyper.bounds.ge if hyper.bounds.gt is None else hyper.bounds.gt
    if hyper.type != "number":
        problem = f"this is a {hyper.type}"
    elif hyper.optional:
        problem = "it may not be None"
    elif hyper.tensor != "never":
        problem = "it may not be a tensor"
    elif lower_bound is None or lower_bound < 1:
        problem = "ge= must be 1 or more"
    elif not isinstance(hyper.default, int | float) or hyper.default % 1:
        problem = f"{hyper.default} is not whole"
    if problem:
        message = f"`{RANK}` is a size of matrices, a whole number: {problem}"
        source.error_at(hyper.place, message, _HINT)
