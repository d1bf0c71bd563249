"""Keep track of the names that a rule may read, and of their kinds, while it is read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes, Kind, declared_kinds, kind_of
from optgen.ir.nodes import Expr, Place, Stmt


@dataclass
class Scope:
    """The names that a rule may read at the current point, and the statements read so far.

    * `kinds`: the names defined on every path to this point, with their kinds.
    * `maybe_undefined`: the names defined on some paths only.
    * `read`, `written`: the names that the rule has read and written so far.
    * `locals`: the author's own variables, with the place of the first assignment.
    * `booleans`: the variables that are true or false.
    * `axes`: the axes of every name ever assigned.
    * `items`: for each variable unpacked from a tuple, the item of the tuple.
    * `helper_values`: while a helper is inlined, the expression that each of its names stands for;
      else None.
    * `inlined_helpers`: the helpers that are being inlined, outermost first.
    * `rule_names`: all names in the rule's text. An inlined name may not collide with them.
    * `known_true`: conditions that hold in the current branch, as `implied` returns them:
      "amsgrad", "not amsgrad", "factored", "eps[0] is given".
    * `statements`: the statements read so far, in the current branch.
    * `scalars_from_reductions`: the scalar states that are computed from a reduction.
    * `num_nodes`: the number of names, numbers and ops read so far.
    * `draw_count`: the number of calls read so far that draw random numbers.
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
    helper_values: dict[str, Expr] | None = None
    inlined_helpers: tuple[str, ...] = ()
    rule_names: frozenset[str] = frozenset()
    known_true: frozenset[str] = frozenset()
    statements: list[Stmt] = field(default_factory=list)
    scalars_from_reductions: set[str] = field(default_factory=set)
    num_nodes: int = 0
    draw_count: int = 0

    def __post_init__(self) -> None:
        self.kinds.update(declared_kinds(self.algorithm))
        self.axes.update((name, kind.axes) for name, kind in self.kinds.items())

    @property
    def in_helper(self) -> bool:
        """Tell whether a helper is being inlined."""
        return self.helper_values is not None

    def kind(self, expr: Expr) -> Kind:
        """Return the kind of an expression at the current point."""
        return kind_of(expr, lambda ref: self.kinds[ref.name])

    def visible_names(self) -> Iterator[str]:
        """Yield every name that a rule or a helper may read at this point, for hints."""
        yield from self.kinds if self.helper_values is None else self.helper_values
        yield from self.constants

    def unused_name(self, name: str) -> str:
        """Return the name itself if it is free, else the name with the first free number."""
        taken = {*self.axes, *self.constants, *self.rule_names}
        candidates = (name if n == 1 else f"{name}{n}" for n in range(1, len(taken) + 2))
        return next(c for c in candidates if c not in taken)

    @contextmanager
    def branch(self, truths: frozenset[str]) -> Iterator[list[Stmt]]:
        """Collect the statements of one branch in a new list. In the branch, `truths` are known."""
        outer_statements, self.statements = self.statements, []
        known_before, self.known_true = self.known_true, self.known_true | truths
        try:
            yield self.statements
        finally:
            self.statements, self.known_true = outer_statements, known_before
