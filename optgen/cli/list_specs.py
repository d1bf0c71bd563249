"""Implement `optgen list`, which prints the catalogue as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from inspect import signature

from optgen.cli.locate_specs import catalogue
from optgen.compositions import list_modifiers, modifier
from optgen.ir.algorithm import Algorithm, State
from optgen.spec.composition.check_parts import modifier_part
from optgen.spec.read_spec import read_specs

_OPTIMIZER_HEADER = ("name", "class", "state", "paper")
_FUNCTION_HEADER = ("name", "function", "lists")
_MODIFIER_HEADER = ("modifier", "stage", "hyperparameters")


def table() -> str:
    """Return three tables: of the optimizers, of the functions over lists, of the modifiers."""
    algorithms = read_specs(catalogue().values())
    tables = [
        columns([_OPTIMIZER_HEADER, *(_optimizer_row(a) for a in algorithms if not a.is_function)])
    ]
    functions = [(a.module, a.name, ", ".join(a.lists)) for a in algorithms if a.is_function]
    tables += [columns([_FUNCTION_HEADER, *functions])] if functions else []
    tables.append(columns([_MODIFIER_HEADER, *map(_modifier_row, list_modifiers())]))
    return "\n\n".join(tables)


def _modifier_row(name: str) -> tuple[str, ...]:
    chosen_modifier = modifier(name)
    hypers = ", ".join(
        str(p).replace("=", " = ") for p in signature(chosen_modifier).parameters.values()
    )
    return (name, modifier_part(chosen_modifier.spec).stage, hypers or "-")


def _optimizer_row(algorithm: Algorithm) -> tuple[str, ...]:
    states = textwrap.shorten(
        ", ".join(_state_text(s) for s in algorithm.checkpoint_states()) or "-",
        100,
        placeholder=" …",
    )
    if algorithm.base:
        states = f"as {algorithm.base}"
    return (algorithm.module, algorithm.name, states, algorithm.paper)


def _state_text(state: State) -> str:
    return f"{state.key} (if {state.when})" if state.when else state.key


def columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows as aligned text columns, with a line of dashes below the first row."""
    lines = list(rows)
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )
