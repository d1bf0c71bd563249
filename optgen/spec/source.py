"""A spec file's text, its syntax tree, and the places in it."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from dataclasses import dataclass
from typing import NoReturn

from optgen.ir.nodes import Place
from optgen.spec.errors import SpecError


@dataclass(frozen=True)
class Source:
    """The text of a spec and the name it is called by in errors.

    `first_line` is the line of the text's first line in the file it was taken from (a decorated
    function in a notebook or module starts further down, and may be indented). `is_part` says that
    the text may be such a part of a file.
    """

    text: str
    file: str
    first_line: int = 1
    is_part: bool = False

    def parse(self) -> ast.Module:
        """The syntax tree; a file that is not Python is an error with its place."""
        if "\0" in self.text:
            line = self.text[: self.text.index("\0")].count("\n") + self.first_line
            place = Place(self.file, line, 1)
            self._raise(place, "this is not Python: it contains a null byte", "is it text?")
        indented = self.text[:1] in (" ", "\t")
        try:
            if not indented:
                return _checked(ast.parse(self.text), self.file)
            module = _checked(ast.parse("if True:\n" + self.text), self.file)
        except SyntaxError as error:
            line = self.first_line - 1 + (error.lineno or 1) - indented
            place = Place(self.file, line, max(error.offset or 1, 1))
            self._raise(place, f"this is not Python: {error.msg}", "a spec is a Python file")
        ast.increment_lineno(module, -1)
        return ast.Module([s for b in module.body if isinstance(b, ast.If) for s in b.body], [])

    def place(self, node: ast.AST) -> Place:
        """Where a node stands; columns count characters, as editors do."""
        line: int = getattr(node, "lineno", 1)
        before = self.text.split("\n")[line - 1].encode()[: getattr(node, "col_offset", 0)]
        column = len(before.decode(errors="ignore")) + 1
        return Place(self.file, self.first_line - 1 + line, column)

    def quote(self, node: ast.AST) -> str:
        """The author's words for a node, on one line, without comments."""
        return _one_line(ast.get_source_segment(self.text, node) or ast.unparse(node))

    def error(self, node: ast.AST, message: str, hint: str = "") -> NoReturn:
        """Raise a `SpecError` that points at a node."""
        self._raise(self.place(node), message, hint)

    def error_at(self, place: Place, message: str, hint: str = "") -> NoReturn:
        """Raise a `SpecError` that points at a place kept from before."""
        self._raise(place, message, hint)

    @property
    def whole(self) -> str:
        """The text with its line numbers: lines that are not ours are empty."""
        return "\n" * (self.first_line - 1) + self.text

    def _raise(self, place: Place, message: str, hint: str) -> NoReturn:
        raise SpecError(place, message, hint, self.whole) from None


def _checked(tree: ast.Module, file: str) -> ast.Module:
    """The tree, if it is a program: two arguments of one name, say, are found only here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python warns of, the reader refuses with a place
        compile(tree, file, "exec", dont_inherit=True)
    return tree


def _one_line(text: str) -> str:
    """Several lines as one: comments go, and so does the space inside a bracket."""
    if "\n" not in text:
        return text
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(f"(\n{text}\n)").readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 2] = lines[row - 2][:column]
    result = ""
    for line in lines:
        part = line.strip().removesuffix("\\").strip()
        tight = not result or result[-1] in "([{" or part[:1] in (")", "]", "}")
        result += part if tight else f" {part}"
    return result
