"""Test that functions and files are short: CONTRIBUTING.md states the bounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import optgen

ROOT = Path(optgen.__file__).parent.parent
FOLDERS = ("optgen", "tests", "benchmarks", "docs/website", "release")
"""Folders of code written by hand. `generated/` is not, and a spec is one algorithm."""
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield each function of a text with its number of lines, without its docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node, clean=False)
            doc_lines = 0 if doc is None else doc.count("\n") + 1
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1 - doc_lines


def too_long(texts: dict[str, str]) -> list[str]:
    """Return a line for each file and each function that is too long."""
    return [
        *(
            f"{name}: {lines} lines"
            for name, text in texts.items()
            if (lines := len(text.splitlines())) > MAX_FILE_LINES
        ),
        *(
            f"{name}: {function} has {lines} lines"
            for name, text in texts.items()
            for function, lines in functions(text)
            if lines > MAX_FUNCTION_LINES
        ),
    ]


def test_functions_and_files_are_short() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}

    assert len(texts) > 500
    assert too_long(texts) == []


def test_a_long_function_and_a_long_file_are_found() -> None:
    """The check itself can fail."""
    long_function = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    long_file = "x = 1\n" * (MAX_FILE_LINES + 1)

    assert too_long({"a.py": long_function, "b.py": long_file}) == [
        "b.py: 501 lines",
        "a.py: f has 61 lines",
    ]
    with_docstring = long_function.replace("x = 1", '"""A\n\n    docstring.\n    """', 1)
    assert too_long({"a.py": with_docstring}) == []
