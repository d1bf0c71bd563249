"""The functions of a generated Python file: one for each kind of parameter that the rule tells apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """One `update`: its name, the tensor lists it takes, its keywords, and the lines of its body."""

    name: str
    doc: str
    lists: tuple[str, ...]
    keywords: tuple[str, ...]
    body: tuple[str, ...]


def function_name(name: str, facts: Mapping[str, bool]) -> str:
    """`update_factored`: the runtime asks for it by what holds of a parameter's shape."""
    answers = (fact if holds else f"not_{fact}" for fact, holds in facts.items())
    return "_".join((name, *answers))


def indented(lines: list[str], header: str) -> list[str]:
    """Lines under the header of a loop or branch."""
    return [header, *(f"    {line}" if line else line for line in lines)]
