"""Show a rule as formulas, its arguments, its errors and its inputs."""

from __future__ import annotations

import re

from optgen.ir.algorithm import Algorithm
from website.docstrings import Docstring, Item, display_formula, parse, table_cell
from website.entries import Entry
from website.tables import table

_NAME_IN_RULE = re.compile(r";\s+:math:`\\text\{[^}]*\}`\s+in\s+the\s+rule")
"""A remark that says nothing, because formulas of the site have the names of arguments."""


def rule(entry: Entry) -> str:
    """Return the rule as formulas, from the docstring of the class."""
    doc = parse(entry.cls.__doc__)
    formulas = (typewriter(entry.algorithm, each) for each in doc.formulas)
    return "\n\n".join(display_formula(each) for each in formulas)


def typewriter(algorithm: Algorithm, formula: str) -> str:
    """Return a formula in which hyperparameters without a letter have the names of arguments."""
    formula = formula.replace(r"\textit{", r"\texttt{")  # flags
    for hyper in algorithm.hypers:
        shown = re.escape(hyper.name).replace("_", r"\s+")
        name = hyper.name.replace("_", r"\\_")  # the pattern's own escape
        formula = re.sub(rf"\\text\{{{shown}\}}", rf"\\texttt{{{name}}}", formula)
    return formula


def arguments(entry: Entry) -> str:
    """Return the arguments of the constructor as a table, and the extra inputs of `step`."""
    doc = parse(_NAME_IN_RULE.sub("", entry.cls.__doc__))
    parts = [items_table(doc, "Args", "argument")]
    if inputs := doc.items("Inputs of `step`"):
        rows = [(f"`{each.name}`", table_cell(each.text)) for each in inputs]
        parts.append(table(("input of `step`", ""), rows))
    if modes := doc.items("Modes"):
        parts.append(table(("mode", ""), [(f"`{m.name}`", table_cell(m.text)) for m in modes]))
    errors = [f"* **{e.name}**: {e.text}" if e.name else f"* {e.text}" for e in doc.items("Raises")]
    parts.append("\n".join(["The constructor or `step` raises:", "", *errors]))
    return "\n\n".join(parts)


def items_table(doc: Docstring, section: str, title: str) -> str:
    """Return a section of a docstring as a table."""
    rows = []
    for each in doc.items(section):
        text, mark, default = _without_name(each).rpartition(" Default: ")
        text, default = (text, default.removesuffix(".")) if mark else (default, "")
        type_ = f"`{each.type}`" if each.type else ""
        rows.append((f"`{each.name}`", type_, f"`{default}`" if default else "", table_cell(text)))
    header = (title, "type", "default", "")
    used = [i for i, name in enumerate(header) if not name or any(row[i] for row in rows)]
    return table([header[i] for i in used], [[row[i] for i in used] for row in rows])


def _without_name(item: Item) -> str:
    """Return an item's text without a beginning that only repeats the item's name."""
    name = item.name.replace("_", " ").capitalize()
    rest = item.text.removeprefix(name)
    if rest == item.text or rest[:1] not in (",", ";", "."):
        return item.text
    rest = rest[1:].lstrip()
    return f" {rest}" if rest.startswith("Default: ") else f"{rest[:1].upper()}{rest[1:]}"
