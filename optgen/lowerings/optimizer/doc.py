"""Write the docstring of an optimizer class or function: rule, arguments, errors and state."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from optgen.contract.states import MATRIX_SHAPES, Shape
from optgen.ir.algorithm import Algorithm, Bounds, Hyper, State
from optgen.ir.nodes import assigns
from optgen.lowerings.optimizer.constructor import Argument
from optgen.lowerings.optimizer.hyperparameter_roles import role
from optgen.lowerings.python.literals import as_shown, literal
from optgen.passes.latex import Symbols, to_latex
from optgen.passes.prepare_rule import drop_unused_hypers

_WIDTH = 100

_DESCRIPTIONS = {"lr": "Learning rate"}
"""Descriptions of abbreviated names. Other names are printed in words, unless they have a role."""

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
        yield from _item(
            f"{argument.name} ({_text_of_type(argument)}): {about} Default: {argument.default}."
        )


def _item(text: str) -> list[str]:
    return _wrapped(text, " " * 12, first_indent=" " * 8)


def _text_of_type(argument: Argument) -> str:
    return argument.annotation.replace(" | ", " or ")


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
        value = "a tensor or None" if state.when else "a tensor"
        yield from _item(
            f"{state.step_argument} (sequence of Tensor): :math:`{symbols.at(state.symbol)}`, "
            f"{value} for each parameter, in the order of the groups."
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
        texts_of_flag = (f"with `{name}` only", f"without `{name}` only")
        if_true, if_false = _TEXTS_OF_FACTS.get(name, texts_of_flag)
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
