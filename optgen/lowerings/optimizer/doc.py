"""Write the docstring of an optimizer class or function: rule, arguments, errors and state."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from optgen.contract.states import MATRIX_SHAPES, RANK, Shape
from optgen.ir.algorithm import Algorithm, Bounds, Hyper, State
from optgen.ir.nodes import Assign, Call, Const, Expr, Ref, assigns, children, expressions
from optgen.lowerings.optimizer.constructor import Argument
from optgen.lowerings.python.literals import as_shown, literal
from optgen.passes.latex import Symbols, to_latex
from optgen.passes.prepare_rule import drop_unused_hypers

_WIDTH = 100

_DESCRIPTIONS = {"lr": "Learning rate"}
"""Descriptions of abbreviated names. Others are printed in words, without `about=` and a role."""

_COMMON_ARGUMENTS = {
    "maximize": "Maximize the objective instead of minimizing it.",
    "foreach": "Update many tensors with each operation (True) or one at a time (False); "
    "None leaves the choice to the runtime.",
    "fused": "Require the fused kernel (True) or never use it (False); None uses it where it can "
    "run and no other implementation is requested.",
    "capturable": "Let a CUDA graph capture the step.",
    "differentiable": "Let autograd follow the step.",
}
_SHAPES: dict[Shape, str] = {
    "like": "like the parameter",
    "row": "one number per row of the parameter",
    "col": "one number per column of the parameter",
    "scalar": "0-dimensional",
    **{
        (m, n): f"for each matrix of the parameter one of shape ({m}, {n})"
        for m, n in MATRIX_SHAPES
    },
}
_TEXTS_OF_FACTS = {
    "factored": ("only where it has rows and columns", "only where it has no rows and columns"),
    "tall": ("only where it has no fewer rows than columns", "only where it has fewer rows"),
}
"""Text for `when=` a shape predicate, and for its negation."""


def docstring(algorithm: Algorithm, arguments: Iterable[Argument]) -> list[str]:
    """Return the lines of a class docstring; all but the first are indented for the class."""
    params = (
        "params: Parameters to optimize or pairs (name, parameter), or dicts that define groups."
    )
    lines = list(_head(algorithm))
    lines += ["", "    Args:", *_item(params), *_arguments(algorithm, arguments)]
    lines += ["", "    Raises:", *_raises(algorithm)]
    states = list(_states(algorithm))
    lines += ["", "    State:", *states] if states else []
    inputs = list(_inputs(algorithm))
    lines += ["", "    Inputs of `step`:", *inputs] if inputs else []
    lines += ["", "    Modes:"] if algorithm.programs else []
    for program in algorithm.programs:
        lines += _item(f"{program.mode}(): {program.function.doc.strip().splitlines()[0]}")
    if algorithm.paper:
        lines += ["", f"    Paper: {algorithm.paper}"]
    return lines


def function_docstring(
    algorithm: Algorithm, lists: Mapping[str, str], arguments: Iterable[Argument]
) -> list[str]:
    """Return the lines of a function's docstring; `lists` maps names in the rule to arguments."""
    if algorithm.is_sweep:
        return [algorithm.doc]
    symbols = Symbols(algorithm)
    lines = list(_head(algorithm))
    lines += ["", "    Args:"]
    for name, argument in lists.items():
        written = any(a.target.name == name for a in assigns(algorithm.rule))
        use = "updated in place" if written else "only read"
        lines += _item(f"{argument} (sequence of Tensor): :math:`{symbols.at(name)}` each, {use}.")
    lines += _arguments(algorithm, arguments)
    messages = "; or: ".join(["An argument is outside its range", *_messages(algorithm)])
    value_error = f"ValueError: {messages}; or the lists differ in their lengths or shapes."
    return [*lines, "", "    Raises:", *_item(value_error)]


def _head(algorithm: Algorithm) -> Iterator[str]:
    """Yield the author's description and the rule."""
    summary, *rest = algorithm.doc.strip().splitlines()
    # The opening quotes, which the caller prints, make the first line longer.
    first, *more = _wrapped(summary, "    ", first_indent='    r"""')
    yield from (first.removeprefix('    r"""'), *more)
    yield from (f"    {line}".rstrip() for line in rest)
    yield from ("", "    .. math::", *_rule(algorithm))


def _wrapped(text: str, indent: str, first_indent: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=indent if first_indent is None else first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _rule(algorithm: Algorithm) -> Iterator[str]:
    """Yield the lines of the rule's LaTeX, with long lines wrapped and indented."""
    for line in to_latex(algorithm).splitlines():
        indent = " " * (8 + len(line) - len(line.lstrip()))
        yield from _wrapped(line.strip(), f"{indent}    ", first_indent=indent)


def _arguments(algorithm: Algorithm, arguments: Iterable[Argument]) -> Iterator[str]:
    symbols = Symbols(algorithm)
    hypers_read = drop_unused_hypers(algorithm).hypers
    for argument in arguments:
        hyper = algorithm.hyper(argument.name)
        about = (
            _COMMON_ARGUMENTS[argument.name]
            if hyper is None
            else _describe_hyper(algorithm, hyper, symbols, hyper in hypers_read)
        )
        type_ = argument.annotation.replace(" | ", " or ")
        yield from _item(f"{argument.name} ({type_}): {about} Default: {argument.default}.")


def _item(text: str) -> list[str]:
    return _wrapped(text, " " * 12, first_indent=" " * 8)


def _describe_hyper(algorithm: Algorithm, hyper: Hyper, symbols: Symbols, is_read: bool) -> str:
    name = _DESCRIPTIONS.get(hyper.name, hyper.name.replace("_", " ").capitalize())
    words = hyper.about or role(algorithm, hyper) or name
    if hyper.type == "flag":
        return f"{words}."
    if hyper.type == "choice":
        return f"{words}: one of {', '.join(map(literal, hyper.choices))}."
    bounds = _describe_bounds(hyper.bounds, "each " if hyper.type == "tuple" else "")
    words += ", a whole number" if hyper.bounds.whole and "whole" not in words else ""
    text = f"{words}, {bounds}" if bounds else words
    if not is_read:
        return f"{text}."
    return f"{text}; :math:`{symbols.hyper(hyper.name)}` in the rule."


def _describe_bounds(bounds: Bounds, prefix: str) -> str:
    low = bounds.ge if bounds.gt is None else bounds.gt
    high = bounds.le if bounds.lt is None else bounds.lt
    if low is not None and high is not None:
        opening, closing = "[" if bounds.gt is None else "(", "]" if bounds.lt is None else ")"
        return f"{prefix}in {opening}{literal(low)}, {literal(high)}{closing}"
    if low is not None:
        return f"{prefix}{'at least' if bounds.gt is None else 'above'} {literal(low)}"
    if high is not None:
        return f"{prefix}{'at most' if bounds.lt is None else 'below'} {literal(high)}"
    return ""


def _raises(algorithm: Algorithm) -> Iterator[str]:
    value_errors = ["An argument is outside its range", *_messages(algorithm)]
    if algorithm.gradient == "sparse_only":
        value_errors.append("A parameter is sparse or complex")
    yield from _item(f"ValueError: {'; or: '.join(value_errors)}.")
    yield from _item("RuntimeError: `fused` together with `differentiable` or with `foreach`.")
    if differing := _describe_values_across_groups(algorithm):
        yield from _item(f"RuntimeError: {differing}")
    if not algorithm.elementwise:
        yield from _item(
            "RuntimeError: A parameter is complex, or a training engine has replaced it by a flat "
            "partition."
        )


def _describe_values_across_groups(algorithm: Algorithm) -> str:
    """Describe the values that groups must share; "" if there are none."""
    names = [f"`{h.name}`" for h in algorithm.hypers if h.groups != "any"]
    or_zero = [f"`{h.name}`" for h in algorithm.hypers if h.groups == "equal or 0"]
    if not names:
        return ""
    exception = f" ({', '.join(or_zero)} may be 0 in some)" if or_zero else ""
    return f"Groups differ in {', '.join(names)}{exception}."


def _messages(algorithm: Algorithm) -> Iterator[str]:
    return (as_shown(r.message, {"shape": "…"}) for r in algorithm.requires)


def _states(algorithm: Algorithm) -> Iterator[str]:
    symbols = Symbols(algorithm)
    if algorithm.step:
        type_, shape = ("int", "") if algorithm.counter == "int" else ("Tensor", ", 0-dimensional")
        yield from _item(f"step ({type_}): Number of steps that the parameter has taken{shape}.")
    for state in algorithm.checkpoint_states():
        yield from _item(f"{state.key} (Tensor): {_describe_state(state, symbols)}.")


def _inputs(algorithm: Algorithm) -> Iterator[str]:
    symbols = Symbols(algorithm)
    for state in algorithm.extra_inputs():
        symbol, name = f":math:`{symbols.at(state.symbol)}`", state.step_argument
        if state.shape == "scalar":
            yield from _item(f"{name} (float or Tensor): {symbol}, one number for all parameters.")
            continue
        value = "a tensor or None" if state.when else "a tensor"
        shape = "" if state.shape == "like" else f": {_SHAPES[state.shape]}"
        yield from _item(
            f"{name} (sequence of Tensor): {symbol}, {value} for each parameter, in the order of "
            f"the groups{shape}."
        )


def _describe_state(state: State, symbols: Symbols) -> str:
    parts = [f":math:`{symbols.at(state.symbol, 't' if state.written else '')}`"]
    shape = _SHAPES[state.shape] + (", one for all groups" if state.of_all else "")
    if state.dtype:
        parts.append(state.dtype.replace("_", " "))
        shape = shape.replace("like the parameter", "of the parameter's shape")
    parts.append(shape)
    parts.append(_initial_value(state))
    if state.condition:
        name = state.condition.name
        texts = (f"with `{name}` only", f"without `{name}` only")
        if limit := state.condition.limit:
            nouns = {"rows": "rows", "cols": "columns"}
            text = f"`{limit[1]}` {nouns[limit[0]]}"
            texts = (f"only where it has at most {text}", f"only where it has more than {text}")
        if_true, if_false = _TEXTS_OF_FACTS.get(name, texts)
        parts.append(if_true if state.condition.holds else if_false)
    return ", ".join(parts)


def _initial_value(state: State) -> str:
    """Describe a state's initial value, or the value of a state that no step writes."""
    if state.init == "p":
        return "at first a copy of it" if state.written else "a copy of it before its first step"
    if state.init == "index":
        return "at first the parameter's number, counted from 0"
    if not isinstance(state.init, str):
        return f"at first {literal(state.init).removesuffix('.0')}"
    return f"at first `{state.init}`" if state.written else f"the `{state.init}` of its first step"


def role(algorithm: Algorithm, hyper: Hyper) -> str:
    """Return a description of a hyperparameter's role if the rule proves it, else "".

    Anything that a rule does not prove is said by the spec's `about=`.
    """
    averages = list(_averages(algorithm))
    averages_by_number = [  # for each number of the hyperparameter, the averages that it weights
        [a for a in averages if a.weight in _equal_expressions(algorithm, number)]
        for number in _numbers(hyper)
    ]
    if averages_by_number and all(averages_by_number):
        return _describe_decay(algorithm, averages_by_number)
    if hyper.name == RANK and algorithm.has_rank:
        return "Rank of thin matrices, a whole number"
    if hyper.name == "eps" and _keeps_divisors_from_zero(algorithm, hyper.name):
        return "Added to the denominator for numerical stability"
    return ""


def _numbers(hyper: Hyper) -> list[Expr]:
    """Return the expressions by which a rule may read a hyperparameter's numbers."""
    if hyper.type == "tuple":
        return [Call("item", (Ref(hyper.name), Const(i))) for i in range(hyper.size)]
    return [Ref(hyper.name)] if hyper.type == "number" else []


def _equal_expressions(algorithm: Algorithm, number: Expr) -> list[Expr]:
    """Return a number's expression, and the names that are always equal to it."""
    names = [a.target for a in assigns(algorithm.rule)]
    assigned_once = (a for a in assigns(algorithm.rule) if names.count(a.target) == 1)
    return [number, *(a.target for a in assigned_once if a.value == number)]


@dataclass(frozen=True)
class _Average:
    """Running average in a rule: `state = weight * state + (1 - weight) * value`."""

    weight: Expr
    value: tuple[Expr, ...]  # its factors


def _averages(algorithm: Algorithm) -> Iterator[_Average]:
    states = {state.symbol for state in algorithm.states}
    for stmt in assigns(algorithm.rule):
        if stmt.target.name in states:
            yield from _average(stmt)


def _average(stmt: Assign) -> Iterator[_Average]:
    """Yield the running average that a statement computes, if it computes one."""
    state = stmt.target
    match stmt.value:
        case Call("lerp", (start, end, Call("-", (Const(1), weight)))) if start == state:
            yield _Average(weight, tuple(_factors(end)))
        case Call("+", (a, b)):
            for old, new in ((a, b), (b, a)):
                old_factors, new_factors = _factors(old), _factors(new)
                if len(old_factors) == 2 and state in old_factors:
                    old_factors.remove(state)
                    (weight,) = old_factors
                    new_weight = Call("-", (Const(1), weight))
                    if new_weight in new_factors:
                        new_factors.remove(new_weight)
                        yield _Average(weight, tuple(new_factors))


def _factors(expr: Expr) -> list[Expr]:
    match expr:
        case Call("*", (a, b)):
            return [*_factors(a), *_factors(b)]
    return [expr]


def _describe_decay(algorithm: Algorithm, averages_by_number: list[list[_Average]]) -> str:
    """Describe the numbers of a hyperparameter as decay rates of running averages."""
    averages = [average for of_number in averages_by_number for average in of_number]
    if len(averages_by_number) > 1:
        return "Decay rates of the running averages"
    if len(averages) > 1:
        return "Decay rate of the running averages"
    grad, value = Ref(algorithm.grad), averages[0].value
    if value in ((Call("**", (grad, Const(2))),), (grad, grad)):
        return "Decay rate of the running average of squared gradients"
    if value == (grad,):
        return "Decay rate of the running average of gradients"
    return "Decay rate of a running average"


def _keeps_divisors_from_zero(algorithm: Algorithm, name: str) -> bool:
    """Tell whether a number is added to divisors wherever it is read."""
    reads = _reads_in_rule(algorithm, name)
    return bool(reads) and all(
        path[:1] == ["+"] and _divides(algorithm, path, target, frozenset((name,)))
        for path, target in reads
    )


_NONZERO_OPS = ("+", "sqrt", "*", "**", "maximum")
"""Ops on a divisor whose result is nonzero, because a positive number is added to their operand."""


def _divides(algorithm: Algorithm, path: list[str], target: str, seen: frozenset[str]) -> bool:
    """Tell whether a value that is read ends up in a divisor, here or through a local variable.

    Args:
        algorithm: the algorithm.
        path: the ops around the read, innermost first.
        target: the name that the statement assigns.
        seen: the local variables through which the value has passed so far.
    """
    for word in path:
        if word == "divisor":
            return True
        if word not in _NONZERO_OPS:
            return False
    if not target or target in algorithm.stored or target in seen:
        return False
    reads = _reads_in_rule(algorithm, target)
    return bool(reads) and all(
        _divides(algorithm, path, reader, seen | {target}) for path, reader in reads
    )


def _reads_in_rule(algorithm: Algorithm, name: str) -> list[tuple[list[str], str]]:
    """Return the reads of a name, as `_reads_of` yields them; the target of a condition is ""."""
    values = [(stmt.value, stmt.target.name) for stmt in assigns(algorithm.rule)]
    assigned = [value for value, _ in values]
    values += [(expr, "") for expr in expressions(algorithm.rule) if expr not in assigned]
    return [read for value, target in values for read in _reads_of(value, target, name)]


def _reads_of(expr: Expr, target: str, name: str) -> Iterator[tuple[list[str], str]]:
    """Yield the ops around each read of a name, innermost first, and the statement's target.

    The op is "/" for a read in the numerator of a quotient, "divisor" for one in the denominator.
    """
    if isinstance(expr, Ref) and expr.name == name:
        yield [], target
    for index, child in enumerate(children(expr)):
        word = expr.op if isinstance(expr, Call) else ""
        word = "divisor" if word == "/" and index == 1 else word
        yield from (([*path, word], reader) for path, reader in _reads_of(child, target, name))
