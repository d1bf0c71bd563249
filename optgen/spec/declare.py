"""The names of the spec language, as Python objects that do nothing.

A spec is read from its source and never executed; a module that holds one may still be imported (a
notebook, an editor, a test), so `@optimizer` returns an inert `Spec` and a declaration is a token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from optgen.ir.nodes import NOWHERE, Place
from optgen.spec.errors import SpecError
from optgen.spec.part import part_of_file


@dataclass(frozen=True)
class Spec:
    """A spec as it was written: its source text, the file it stands in, and its first line there.

    The text is a file's, or that of one function with the constants and helpers it names.
    `name` is the name of the optimizer class. Hand it to `optgen.load`.
    """

    name: str
    source: str
    file: str
    line: int

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse to run: a spec is read, and becomes a class by `optgen.load`."""
        raise TypeError(
            f"{self.name} is a spec, which is read and never run; "
            f"make a class of it first: {self.name} = optgen.load({self.name})"
        )

    def __repr__(self) -> str:
        return f"<Spec {self.name} from {Path(self.file).name}:{self.line}>"


def optimizer(
    *bare: Callable[..., None], paper: str = "", **options: Any
) -> Callable[[Callable[..., None]], Spec]:
    """Mark a function as the spec of an optimizer.

    Args:
        *bare: nothing; it is here to say what is wrong with `@optimizer` without brackets.
        paper: where the algorithm was published (a URL).
        **options: `base`, `keywords`, `group`, `gradient`, `sparse_hint`: how a drop-in says
            torch's own order of arguments and group keys; see docs/spec-language.md.

    Returns:
        A decorator that turns the function into an inert `Spec`.

    Raises:
        SpecError: the function's text cannot be found, or the decorator has no brackets.
    """
    for function in bare:
        spec = _as_written(function)
        lines = ["\n"] * (spec.line - 1) + spec.source.splitlines(keepends=True)
        marks = [n for n, line in enumerate(lines) if line.lstrip().startswith("@")]
        line = marks[0] if marks else spec.line - 1
        raise SpecError(
            Place(spec.file, line + 1, lines[line].find("@") + 2),
            "the only decorator of the language is @optimizer(…)",
            '@optimizer(paper="https://…")',
            "".join(lines),
        )
    return _as_written


def _as_written(function: Callable[..., None]) -> Spec:
    """The function's text, where Python can find it."""
    try:
        text, first = part_of_file(function)
    except OSError:
        code = getattr(function, "__code__", None)
        raise SpecError(
            Place(code.co_filename, code.co_firstlineno, 1) if code else NOWHERE,
            f"the text of `{function.__name__}` cannot be found, and a spec is read, not run",
            "write it into a file or a notebook cell; what is typed at a prompt leaves no text",
        ) from None
    file = inspect.getsourcefile(function) or "<unknown>"
    return Spec(function.__name__, text, file, first)


@dataclass(frozen=True)
class Declared:
    """A token: what a declaration evaluates to if somebody imports the spec file."""

    word: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


def _declaration(word: str) -> Callable[..., Any]:
    def declare(*args: Any, **options: Any) -> Declared:
        return Declared(word, args, tuple(options.items()))

    declare.__name__ = declare.__qualname__ = word
    return declare


def _word(name: str) -> Callable[..., Any]:
    def refuse(*args: Any) -> NoReturn:
        raise TypeError(f"{name}() is a word of the spec language, which is read and never run")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


state = _declaration("state")
hyper = _declaration("hyper")
flag = _declaration("flag")
choice = _declaration("choice")
fixed = _declaration("fixed")
require = _word("require")
fresh = _word("fresh")
sqrt = _word("sqrt")
exp = _word("exp")
log = _word("log")
abs = _word("abs")
sign = _word("sign")
maximum = _word("maximum")
minimum = _word("minimum")
where = _word("where")
clamp = _word("clamp")
lerp = _word("lerp")
