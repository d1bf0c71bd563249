"""The name and the licence of a class's source, for the head of an imported spec."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import textwrap
from pathlib import Path

HEAD = 20
"""The lines of a file in which its licence is looked for."""

NAMES = r"\b(MIT|BSD|Apache|A?L?GPL|MPL|ISC|CC0|CC BY|Unlicense)"
"""The names of licences."""


def provenance(cls: type) -> str:
    """Return the text of a spec's first docstring: where the class is from, and its licence."""
    name, module = cls.__name__, cls.__module__
    lines = [f"{name}, imported from {module}."]
    if licence := _licence(module):
        lines += ["", *textwrap.wrap(licence, 99)]
    return "\n".join(lines) + ("\n" if len(lines) > 1 else "")


def paper_of(cls: type) -> str:
    """Return the address of the paper that a class's docstring names, or "" if it names none."""
    text = cls.__doc__ if isinstance(cls.__doc__, str) else ""
    found = set(re.findall(r"arxiv\.org/(?:abs|pdf)/(\d{4}\.\d{4,5})", text))
    return f"https://arxiv.org/abs/{found.pop()}" if len(found) == 1 else ""


def _licence(module: str) -> str:
    """Return a sentence with the licence of a module's file, else of its package, else ""."""
    if line := _line_of_file(module):
        return f"Its file says '{line}'."
    try:
        data = importlib.metadata.metadata(module.partition(".")[0])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    names = list(data.get_all("License-Expression") or ())
    names += [
        c.rpartition(" :: ")[2] for c in data.get_all("Classifier") or () if "License ::" in c
    ]
    names += [line for text in data.get_all("License") or () for line in text.splitlines()[:1]]
    if not names:
        return ""
    return f"The licence of {data['Name']} {data['Version']}: {_plain(names[0])}."


def _line_of_file(module: str) -> str:
    """Return the first line of a module's head that names a licence, or ""."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not Path(file).is_file():
        return ""
    with open(file, encoding="utf-8", errors="replace") as stream:
        head = [line for _, line in zip(range(HEAD), stream, strict=False)]
    for line in head:
        if re.search(r"licen[cs]e", line, re.IGNORECASE) and re.search(NAMES, line):
            return _plain(line)
    return ""


def _plain(text: str) -> str:
    """Return a line without marks of comments, and without what would end a docstring."""
    return re.sub(r'["\\]', "", text).strip(" \t\r\n#*/'.;")
