"""Test that docstrings begin with a verb or a noun, not with a question word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    *("optgen", "generated", "templates", "specs", "tests"),
    *("benchmarks", "examples", "docs/website", "release"),
)
QUESTION_WORDS = ("What", "Where", "Who", "Of", "How", "Which", "Whether", "Why", "The same")
"""Words that may not begin a docstring: its subject would come late, or not at all."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a file, and those of its constants, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield statement.lineno, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_question_word(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "found" not in path.parts
        for line, text in docstrings(path)
        if text.startswith(tuple(f"{word} " for word in QUESTION_WORDS))
    ]

    assert not found, "\n".join(found)


def test_a_question_word_is_found(tmp_path: Path) -> None:
    """The check itself can fail."""
    file = tmp_path / "file.py"
    file.write_text('"""Where things are."""\nONE = 1\n"""Of two."""\n')

    assert [line for line, text in docstrings(file) if text.startswith(QUESTION_WORDS)] == [1, 3]
