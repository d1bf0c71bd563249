"""What names mean at one point of a rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Expr, Place, Stmt
from optgen.ir.value_kinds import Axes, Kind, declared_kinds, kind_of


@dataclass
class Scope:
    """The names a rule may read where the reader stands, and the statements read so far.

    `kinds` are the names defined on every path to this point; `partial` those defined on some.
    `locals` are the author's own names, where each is written first;
    `answers` are names of something true or false; `axes` says of every name ever written whether
    it is one number, a tensor, or one number per row or column; `items` are names of a tuple's
    numbers. `renamed` maps a helper's own names to what they stand for while the helper is inlined;
    `spoken` are the rule's own names, which no helper's name may become; `holding` are the truths
    of hyperparameters ("amsgrad", "not amsgrad") and facts of the parameter ("factored") that hold
    in this arm. `size` counts what has been read.
    """

    algorithm: Algorithm
    constants: Mapping[str, Any]
    helpers: Mapping[str, ast.FunctionDef]
    kinds: dict[str, Kind] = field(default_factory=dict)
    maybe_undefined: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    locals: dict[str, Place] = field(default_factory=dict)
    booleans: set[str] = field(default_factory=set)
    axes: dict[str, Axes] = field(default_factory=dict)
    items: dict[str, Expr] = field(default_factory=dict)
    renamed: dict[str, Expr] | None = None
    inlining: tuple[str, ...] = ()
    rule_names: frozenset[str] = frozenset()
    known_true: frozenset[str] = frozenset()
    out: list[Stmt] = field(default_factory=list)
    size: int = 0

    def __post_init__(self) -> None:
        self.kinds.update(declared_kinds(self.algorithm))
        self.axes.update((name, kind.axes) for name, kind in self.kinds.items())

    def kind(self, expr: Expr) -> Kind:
        """The kind of an expression read here."""
        return kind_of(expr, lambda ref: self.kinds[ref.name])

    def known(self) -> Iterator[str]:
        """Every name that could have been meant, for hints."""
        yield from self.kinds if self.renamed is None else self.renamed
        yield from self.constants

    def unused(self, name: str) -> str:
        """The name itself if nothing has it yet, else with the first free number behind it."""
        taken = {*self.axes, *self.constants, *self.rule_names}
        candidates = (name if n == 1 else f"{name}{n}" for n in range(1, len(taken) + 2))
        return next(c for c in candidates if c not in taken)

    @contextmanager
    def branch(self, truths: frozenset[str]) -> Iterator[list[Stmt]]:
        """Collect the statements of one arm apart, where some truths hold besides."""
        outer, self.out = self.out, []
        before, self.known_true = self.known_true, self.known_true | truths
        try:
            yield self.out
        finally:
            self.out, self.known_true = outer, before
