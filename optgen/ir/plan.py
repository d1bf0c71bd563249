"""A plan: how one bucket of tensors is updated. A scalar program, then trips through memory.

`scalars` computes every number a sweep needs, per parameter, in float64: from the step count, the
hyperparameters and scalar state. A `Sweep` is one trip: in its body tensor values are `Linear`
forms whose coefficients are numbers, named scalars or their negations, and opaque words over such
forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.kinds import Kind, kind_of
from optgen.ir.nodes import Call, Expr, Program, Ref, assigns, expressions, refs, walk

Role = Literal["param", "grad", "state"]


@dataclass(frozen=True)
class Stream:
    """A list of tensors a sweep reads or writes: `name` is its variable."""

    name: str
    role: Role
    stored: bool
    state: State | None = None

    @property
    def when(self) -> str | None:
        """The hyperparameter whose truth brings the stream into being, or None: always there."""
        return self.state.when if self.state else None


@dataclass(frozen=True)
class Sweep:
    """One trip through memory: the streams it touches and what it does to each element."""

    streams: tuple[Stream, ...]
    body: Program


@dataclass(frozen=True)
class Plan:
    """The scalar program and the phases of one algorithm; `kinds` says what every name is."""

    algorithm: Algorithm
    scalars: Program
    sweeps: tuple[Sweep, ...]
    kinds: Mapping[Ref, Kind]

    def kind(self, expr: Expr) -> Kind:
        """The kind of any expression of the plan."""
        return kind_of(expr, self.kinds.__getitem__)

    def coefficients(self) -> Iterator[Ref]:
        """Every scalar name the sweeps read, in order, each once."""
        seen: dict[Ref, None] = {}
        for sweep in self.sweeps:
            for expr in expressions(sweep.body):
                seen.update((r, None) for r in refs(expr) if not self.kinds[r].is_tensor)
        return iter(seen)

    def fresh(self) -> tuple[State, ...]:
        """The states the rule asks `fresh` of, in checkpoint order."""
        asked = _asked_fresh(e for s in self.sweeps for e in expressions(s.body))
        asked |= _asked_fresh(expressions(self.scalars))
        return tuple(s for s in self.algorithm.states if s.symbol in asked)


def _asked_fresh(exprs: Iterator[Expr]) -> set[str]:
    return {
        arg.name
        for expr in exprs
        for node in walk(expr)
        if isinstance(node, Call) and node.word == "fresh"
        for arg in node.args
        if isinstance(arg, Ref)
    }


def streams_of(algorithm: Algorithm, body: Program) -> tuple[Stream, ...]:
    """Parameter, gradient and tensor states, in the order every lowering takes them."""
    stored = {a.target.name for a in assigns(body)}
    states = (Stream(s.symbol, "state", s.symbol in stored, s) for s in algorithm.tensor_states())
    return (Stream(algorithm.param, "param", True), Stream(algorithm.grad, "grad", False), *states)
