"""The names of the spec language, as Python objects that do nothing.

A spec is read from its source and never executed; a module that holds one may still be imported (a
notebook, an editor, a test), so `@optimizer` returns an inert `Spec` and a declaration is a token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class Spec:
    """A spec as it was written: its source text, the file it stands in, and its first line there.

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


def optimizer(*, paper: str = "", **options: Any) -> Callable[[Callable[..., None]], Spec]:
    """Mark a function as the spec of an optimizer.

    Args:
        paper: where the algorithm was published (a URL).
        **options: `base`, `keywords`, `group`, `gradient`, `sparse_hint`: how a drop-in says
            torch's own order of arguments and group keys; see docs/spec-language.md.

    Returns:
        A decorator that turns the function into an inert `Spec`.
    """

    def mark(function: Callable[..., None]) -> Spec:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "<unknown>"
        return Spec(function.__name__, "".join(lines), file, first)

    return mark


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
