"""Print calls that dispatch from runtime flags to template instantiations, and switch cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from optgen.lowerings.fused_cpu.expression_printer import variable
from optgen.lowerings.fused_cpu.line_layout import WIDTH, indented, wrapped_list

_COLUMN = 12  # at which the cases of a switch begin


def dispatch_call(
    function: str,
    first_template_arguments: Sequence[str],
    flags: Iterable[str],
    arguments: Sequence[str],
    hypers: str,
    column: int,
) -> list[str]:
    """Return the lines that call the instantiation of a function template for some flags.

    Args:
        function: the name of the template.
        first_template_arguments: the template arguments before the flags.
        flags: the names of hyperparameters that are template arguments.
        arguments: the arguments of the call.
        hypers: the C++ text of the hyperparameters, from which the flags are read.
        column: the column at which the lines begin.
    """
    flags = list(flags)
    values = product(("false", "true"), repeat=len(flags))
    variants = [f"{function}<{', '.join([*first_template_arguments, *value])}>" for value in values]
    if not flags:
        return wrapped_list(f"return {variants[0]}(", arguments, ");", column)
    before = f"constexpr decltype(&{variants[0]}) variants[] = {{"
    call = wrapped_list(f"return variants[{_index(flags, hypers)}](", arguments, ");", column)
    return [*wrapped_list(before, variants, "};", column), *call]


def switch_case(name: str, lines: list[str]) -> list[str]:
    """Return a case of a switch, on one line if it fits."""
    head = f"case {name}:"
    if len(lines) == 1 and _COLUMN + len(f"{head} {lines[0]}") <= WIDTH:
        return [f"{head} {lines[0]}"]
    is_return = lines[0].startswith("return")
    return [head, *indented(lines)] if is_return else [f"{head} {{", *indented(lines), "}"]


def _index(flags: Iterable[str], hypers: str) -> str:
    """Return the C++ text of a variant's index: the flags are its bits, the first one highest."""
    text = ""
    for name in flags:
        truth = f"truth({hypers}.{variable(name)})"
        text = f"2 * {f'({text})' if ' ' in text else text} + {truth}" if text else truth
    return text
