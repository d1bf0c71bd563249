"""A spec file's text, its syntax tree, and the places in it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import NoReturn

from optgen.ir.nodes import Place
from optgen.spec.errors import SpecError


@dataclass(frozen=True)
class Source:
    """The text of a spec and the name it is called by in errors.

    `first_line` is the line of the text's first line in the file it was taken from (a decorated
    function in a notebook or module starts further down).
    """

    text: str
    file: str
    first_line: int = 1

    def parse(self) -> ast.Module:
        """The syntax tree; a file that is not Python is an error with its place."""
        try:
            return ast.parse(self.text)
        except SyntaxError as error:
            place = Place(self.file, self.first_line - 1 + (error.lineno or 1), error.offset or 1)
            self._raise(place, f"this is not Python: {error.msg}", "a spec is a Python file")
        except ValueError as error:
            self._raise(
                Place(self.file, 1, 1), f"this is not Python: {error}", "is it a text file?"
            )

    def place(self, node: ast.AST) -> Place:
        """Where a node stands."""
        line = getattr(node, "lineno", 1)
        return Place(self.file, self.first_line - 1 + line, getattr(node, "col_offset", 0) + 1)

    def quote(self, node: ast.AST) -> str:
        """The author's words for a node, on one line."""
        text = ast.get_source_segment(self.text, node) or ast.unparse(node)
        return " ".join(line.split("#")[0].strip() for line in text.splitlines()).strip()

    def error(self, node: ast.AST, message: str, hint: str = "") -> NoReturn:
        """Raise a `SpecError` that points at a node."""
        self._raise(self.place(node), message, hint)

    def error_at(self, place: Place, message: str, hint: str = "") -> NoReturn:
        """Raise a `SpecError` that points at a place kept from before."""
        self._raise(place, message, hint)

    def _raise(self, place: Place, message: str, hint: str) -> NoReturn:
        padded = "\n" * (self.first_line - 1) + self.text
        raise SpecError(place, message, hint, padded) from None
