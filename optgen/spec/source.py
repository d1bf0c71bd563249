"""Hold the text of a spec: read it, parse it, quote it, and raise errors at places in it."""

from __future__ import annotations

import ast
import contextlib
import errno
import inspect
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn, TypeGuard, TypeVar

from optgen.ir.nodes import Place
from optgen.spec.errors import SpecError, describe_character, first_forbidden
from optgen.spec.reserved_names import is_snake_case

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


N = TypeVar("N", bound=ast.AST)


def nodes_of(body: Iterable[ast.AST], kind: type[N]) -> Iterator[N]:
    """Yield the nodes of one type in some statements."""
    return (node for top in body for node in ast.walk(top) if isinstance(node, kind))


def calls_of(body: Iterable[ast.AST], *names: str) -> Iterator[ast.Call]:
    """Yield the calls of these functions in some statements."""
    return (call for call in nodes_of(body, ast.Call) if is_call_of(call, *names))


def names_stored(body: Iterable[ast.AST]) -> set[str]:
    """Return the names that some statements assign."""
    return {node.id for node in nodes_of(body, ast.Name) if isinstance(node.ctx, ast.Store)}


def is_call_of(node: ast.AST | None, *names: str) -> TypeGuard[ast.Call]:
    """Tell whether a node is a call of one of these functions, by its plain name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


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


MAX_FILE_BYTES = 200_000
"""The largest size of a spec file, in bytes."""


def read_file(path: Path) -> str:
    """Return the text of a spec file.

    Raises:
        SpecError: the file name is no module name, the file is too large, or it is not UTF-8.
        OSError: the file does not exist, or is a folder, a pipe or a device.
    """
    check_file_name(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        message = f"this file has more than {MAX_FILE_BYTES:,} bytes"
        raise SpecError(
            Place(str(path), 1, 1), message, "a spec is one function: is this a spec file?"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", errors="replace")
        place = Place(str(path), before.count("\n") + 1, len(before) - before.rfind("\n"))
        message = f"this is not Python: {error}"
        raise SpecError(place, message, "is it text? a spec is saved as UTF-8") from None


def module_name(name: str) -> str:
    """Return the snake_case name for a class: SparseAdam -> sparse_adam, AdamW -> adamw."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])(?=[a-z])", r"_\1", name).lower()


def catalogue_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known module that a class or module name means: GaLore and ga_lore mean galore."""
    return {each.replace("_", ""): each for each in known}.get(name.lower().replace("_", ""))


def check_file_name(path: Path) -> None:
    """Raise a SpecError if no Python module may have this file name."""
    if not is_snake_case(path.stem):
        message = "the file name must be in snake_case, and no keyword of Python"
        words = "_".join(re.findall("[a-z0-9]+", module_name(path.stem))).lstrip("0123456789_")
        suggestion = words if is_snake_case(words) else f"my_{words}".rstrip("_")
        hint = f"generated modules get this name: call it {suggestion}.py"
        raise SpecError(Place(str(path), 1, 1), message, hint)


Definition = ast.Assign | ast.FunctionDef


def source_of_function(function: Callable[..., None]) -> tuple[str, int]:
    """Return the text of a function with the definitions it uses, and the text's first line number.

    Lines between these definitions become empty, so that every line keeps its number.

    Raises:
        OSError: Python cannot find the text of the function.
    """
    function_lines, first_line = inspect.getsourcelines(function)
    if function_lines[0][:1] in " \t":  # nested in a function, so its file is no spec file
        return "".join(function_lines), first_line
    lines, _ = inspect.findsource(function)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a cell may hold %magic lines
        return "".join(function_lines), first_line
    spans = [range(first_line, first_line + len(function_lines))]
    spans += [
        range(_first_line(node), (node.end_lineno or 0) + 1)
        for node in _needed_definitions(tree, first_line)
    ]
    kept_lines = {line for span in spans for line in span}
    line_numbers = range(min(kept_lines), max(kept_lines) + 1)
    return "".join(lines[n - 1] if n in kept_lines else "\n" for n in line_numbers), min(kept_lines)


def _needed_definitions(tree: ast.Module, line: int) -> list[Definition]:
    """Return the programs of the function at a line, and all definitions that are needed.

    A definition is needed if the function, one of its programs or a needed definition reads it.
    """
    definitions = dict(_definitions(tree))
    waiting = [n for n in tree.body if _first_line(n) <= line <= (n.end_lineno or 0)]
    needed_by_name: dict[str, Definition] = {
        n.name: n for node in waiting for n in _programs(tree, node)
    }
    waiting += needed_by_name.values()
    while waiting:
        for name in _free_names(waiting.pop()):
            if name in definitions and name not in needed_by_name:
                needed_by_name[name] = definitions[name]
                waiting.append(definitions[name])
    return list(needed_by_name.values())


def _programs(tree: ast.Module, optimizer: ast.stmt) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a file that are decorated with an attribute of an optimizer."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(decorator_list=[ast.Attribute(value=ast.Name(id=name)), *_]):
                if isinstance(optimizer, ast.FunctionDef) and name == optimizer.name:
                    yield node


def _first_line(node: ast.stmt) -> int:
    """Return the first line of a definition, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Yield the name and node of each constant and each undecorated function of a file."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, node
            case ast.FunctionDef(decorator_list=[], name=name):
                yield name, node


def _free_names(node: ast.AST) -> set[str]:
    """Return the names that a definition reads and does not bind."""
    bound = names_stored([node]) | {n.arg for n in nodes_of([node], ast.arg)}
    return {n.id for n in nodes_of([node], ast.Name)} - bound
