"""Hold the text of a spec: parse it, quote it, and raise errors at places in it."""

from __future__ import annotations

import ast
import contextlib
import io
import tokenize
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from optgen.ir.nodes import Place
from optgen.spec.errors import SpecError
from optgen.spec.forbidden_characters import describe_character, first_forbidden

MAX_DEPTH = 100
"""The deepest nesting of expressions and branches allowed. Each term of a sum is one level."""


@dataclass(frozen=True)
class Source:
    """The text of a spec, and its file name for errors. Lines end with a newline only.

    `first_line` is the line of the file at which the text begins: a decorated function in a
    notebook or module starts further down than line 1, and may be indented. With `is_excerpt`, the
    text may be only one function of a file, with the definitions that it needs.
    """

    text: str
    file: str
    first_line: int = 1
    is_excerpt: bool = False

    def __post_init__(self) -> None:
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")
        object.__setattr__(self, "text", text)

    def parse(self) -> ast.Module:
        """Return the syntax tree.

        Raises:
            SpecError: the text is not Python, or holds a forbidden character.
            RecursionError: the text is nested too deeply for the parser.
        """
        self._check_characters()
        indented = self.text[:1] in (" ", "\t")
        try:
            if not indented:
                return _checked(ast.parse(self.text), self.file)
            module = _checked(ast.parse("if True:\n" + self.text), self.file)
        except SyntaxError as error:
            line = self.first_line - 1 + (error.lineno or 1) - indented
            place = Place(self.file, line, max(error.offset or 1, 1))
            self.error_at(place, f"this is not Python: {error.msg}", "a spec is a Python file")
        except MemoryError:
            raise RecursionError from None  # the parser raises MemoryError when its stack is full
        ast.increment_lineno(module, -1)
        return ast.Module([s for b in module.body if isinstance(b, ast.If) for s in b.body], [])

    def _check_characters(self) -> None:
        """Refuse forbidden characters. A form feed is allowed: Python takes it for a space."""
        index = first_forbidden(self.text, allowed_characters="\f")
        if index is not None:
            before = self.text[:index]
            line = before.count("\n") + self.first_line
            place = Place(self.file, line, index - before.rfind("\n"))
            self.error_at(place, *_forbidden(self.text[index]))

    def check_depth(self, tree: ast.Module) -> None:
        """Refuse nesting so deep that the recursion of a pass would fill Python's stack."""
        waiting: list[tuple[ast.AST, int]] = [(node, 0) for node in tree.body]
        while waiting:
            node, depth = waiting.pop()
            if depth > MAX_DEPTH and isinstance(node, ast.stmt | ast.expr):
                message = f"this is nested too deeply: more than {MAX_DEPTH} levels"
                self.error(node, message, "give parts of it names")
            waiting += [(child, depth + 1) for child in ast.iter_child_nodes(node)]

    def check_strings(self, tree: ast.Module) -> None:
        """Refuse forbidden characters in string literals, where an escape may spell them."""
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str() as text):
                    index = first_forbidden(text)
                    if index is not None:
                        self.error(node, *_forbidden(text[index]))

    def place(self, node: ast.AST) -> Place:
        """Return the place of a node. Columns count characters, as editors do."""
        line: int = getattr(node, "lineno", 1)
        before = self._lines[line - 1][: getattr(node, "col_offset", 0)]
        column = len(before.decode(errors="ignore")) + 1
        return Place(self.file, self.first_line - 1 + line, column)

    def quote(self, node: ast.AST) -> str:
        """Return the source text of a node, on one line and without comments."""
        return _one_line(self._segment(node) or ast.unparse(node)).replace("\f", " ")

    def _segment(self, node: ast.AST) -> str:
        """Return the source text of a node, or "" if it has no place."""
        if not isinstance(node, ast.stmt | ast.expr) or node.end_lineno is None:
            return ""
        *lines, last = self._lines[node.lineno - 1 : node.end_lineno]
        text = b"\n".join([*lines, last[: node.end_col_offset]])
        return text[node.col_offset :].decode()

    @cached_property
    def _lines(self) -> list[bytes]:
        """The lines in UTF-8, because column offsets of the syntax tree count bytes."""
        return [line.encode() for line in self.text.split("\n")]

    def error(self, node: ast.AST, message: str, hint: str = "") -> NoReturn:
        """Raise a `SpecError` that points at a node."""
        self.error_at(self.place(node), message, hint)

    def error_at(self, place: Place, message: str, hint: str = "") -> NoReturn:
        """Raise a `SpecError` that points at a place."""
        raise SpecError(place, message, hint, self.padded_text) from None

    @property
    def padded_text(self) -> str:
        """The text after empty lines, so that each line has the number that it has in the file."""
        return "\n" * (self.first_line - 1) + self.text


def _forbidden(character: str) -> tuple[str, str]:
    """Return the message and the hint for a forbidden character."""
    hint = "leave it out: a spec holds letters, signs, spaces, tabs and newlines"
    return f"{describe_character(character)} is not allowed in a spec", hint


def _checked(tree: ast.Module, file: str) -> ast.Module:
    """Return a tree after compiling it. Compilation finds errors that parsing does not.

    An example is a repeated argument name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader raises errors for what Python warns about
        # The reader itself reports deep nesting and forbidden characters, with their places.
        with contextlib.suppress(RecursionError, UnicodeEncodeError):
            compile(tree, file, "exec", dont_inherit=True)
    return tree


def _one_line(text: str) -> str:
    """Join lines into one, without comments and without spaces just inside brackets."""
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
        no_space = not result or result[-1] in "([{" or part[:1] in (")", "]", "}")
        result += part if no_space else f" {part}"
    return result
