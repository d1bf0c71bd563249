"""Turn the docstrings of classes and functions into Markdown: text, formulas and sections."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_SECTIONS = (
    *("Args", "Raises", "State", "Inputs of `step`", "Modes", "Returns", "Yields"),
    *("Attributes", "Example"),
)
_ITEM = re.compile(
    r"(?P<name>[*\w.]+(?:\(\))?(?:, \*{0,2}\w+)*)(?: \((?P<type>[^()]*(?:\([^)]*\))?[^()]*)\))?: "
    r"(?P<text>.*)",
    re.DOTALL,
)
_MATH_DIRECTIVE = re.compile(r"^\.\. math::\n\n?((?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
_FORMULA_OR_CODE = re.compile(r"(\\\(.*?\\\)|`[^`]*`)")
"""Formulas and code, in which nothing is escaped."""


@dataclass(frozen=True)
class Item:
    """An argument, a state or an error, with its type if the docstring has one."""

    name: str
    type: str
    text: str


@dataclass(frozen=True)
class Docstring:
    """A docstring: the text above its sections in Markdown, the text's formulas, the sections."""

    text: str
    formulas: tuple[str, ...]
    sections: dict[str, str]

    def items(self, section: str) -> list[Item]:
        """Return the items of a section; [] if there is no such section."""
        return [_parse_item(each) for each in _items(self.sections.get(section, ""))]


def parse(doc: str | None) -> Docstring:
    """Split a docstring into its parts."""
    lines_by_section: dict[str, list[str]] = {"": []}
    current = lines_by_section[""]
    for line in inspect.cleandoc(doc or "").splitlines():
        title = line.removesuffix(":")
        if line.endswith(":") and title in _SECTIONS:
            current = lines_by_section.setdefault(title, [])
        elif line.startswith("Paper: "):
            current = lines_by_section.setdefault("Paper", [line.removeprefix("Paper: ")])
        else:
            current.append(line)
    text = "\n".join(lines_by_section.pop(""))
    formulas = tuple(textwrap.dedent(each).strip() for each in _MATH_DIRECTIVE.findall(text))
    parts = [
        display_formula(textwrap.dedent(part).strip()) if index % 2 else markdown(part)
        for index, part in enumerate(_MATH_DIRECTIVE.split(text))
    ]
    sections = {
        name: textwrap.dedent("\n".join(lines)).strip() for name, lines in lines_by_section.items()
    }
    return Docstring("\n\n".join(parts).strip(), formulas, sections)


def display_formula(formula: str) -> str:
    """Return a display formula, which the search leaves out."""
    return f"<section data-search-exclude markdown>\n\n\\[\n{formula}\n\\]\n\n</section>"


def _items(section: str) -> Iterator[str]:
    """Yield the items of a section. Indented lines continue an item."""
    items: list[str] = []
    for line in section.splitlines():
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line.strip())
    yield from items


def _parse_item(text: str) -> Item:
    match = _ITEM.fullmatch(text)
    if match is None:
        return Item("", "", markdown(text))
    return Item(match["name"], match["type"] or "", markdown(match["text"]))


def markdown(text: str) -> str:
    """Return a docstring's text as Markdown: roles of Sphinx become formulas and code."""
    text = re.sub(
        r":math:`([^`]*)`", lambda math: rf"\({' '.join(math[1].split())}\)", text, flags=re.DOTALL
    )
    text = re.sub(r":(?:class|func|meth|attr|mod|ref):`~?([^`]*)`", r"`\1`", text)
    parts = _FORMULA_OR_CODE.split(text)
    return "".join(each if i % 2 else _escape(each) for i, each in enumerate(parts))


def _escape(text: str) -> str:
    """Escape what Markdown or HTML would read as markup in plain text."""
    return re.sub(r"(?<=\w)\*(?=\w)|(?<!\*)\*(?=[a-z_])|(?<=\s)_(?=\w)", r"\\\g<0>", text).replace(
        "<", "&lt;"
    )


def table_cell(text: str) -> str:
    """Return Markdown for a cell of a table, in which a bar would end the cell."""
    return " ".join(text.split()).replace("|", r"\|")
