"""A plan: how one bucket of tensors is updated. A scalar program, then phases.

`scalars` computes every number a sweep needs, per parameter, in float64: from the step count, the
hyperparameters and scalar state. A `Sweep` is one trip through memory: in its body tensor values
are `Linear` forms whose coefficients are numbers, named scalars or their negations, and opaque
words over such forms. An elementwise rule is one sweep. A reduction ends a phase: a sweep makes the
sum, a `Finish` makes of it what the next sweep reads. So does a matrix word: `MatrixCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    assigns,
    children,
    expressions,
    refs,
    walk,
)
from optgen.ir.ops import PROPERTIES, REDUCTIONS
from optgen.ir.value_kinds import Kind, kind_of

Role = Literal["param", "grad", "state", "local"]


@dataclass(frozen=True)
class Stream:
    """A list of tensors a sweep reads or writes: `name` is its variable.

    A "local" one is no state: a sweep stores it for a matrix word, or reads what the word made.
    """

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
    """One trip through memory: the streams it touches and what it does to each element.

    A statement whose value is a `sum`, `row_sum`, `col_sum` or `max_abs` of a tensor leaves a
    number, rows or columns for the `Finish` that follows.
    """

    streams: tuple[Stream, ...]
    body: Program

    @property
    def reductions(self) -> tuple[Assign, ...]:
        """The statements that reduce, in order."""
        return tuple(a for a in assigns(self.body) if is_reduction(a.value))


@dataclass(frozen=True)
class Finish:
    """What a parameter's phases share, made between them: numbers, rows and columns.

    It reads reductions, scalars, properties of the parameter and row or column state, and assigns
    such state (stored here) and what later phases read. A reduction of rows or columns is a
    statement of its own.
    """

    body: Program


@dataclass(frozen=True)
class MatrixCall:
    """A matrix word between two sweeps: `args[0]` is a local that the sweep before has stored."""

    target: Ref
    op: str
    args: tuple[Expr, ...]
    quote: tuple[str, ...] = ()


Phase: TypeAlias = Sweep | Finish | MatrixCall


@dataclass(frozen=True)
class Plan:
    """The scalar program and the phases of one algorithm; `kinds` says what every name is.

    `facts` are the answers to what the rule asks of a parameter's shape (`factored`) that this plan
    is for; the algorithm's branches on them are gone. `fresh_keys` are the states that the whole
    rule asks `fresh` of, in checkpoint order: all its plans are told of them.
    """

    algorithm: Algorithm
    scalars: Program
    phases: tuple[Phase, ...]
    kinds: Mapping[Ref, Kind]
    facts: Mapping[str, bool] = field(default_factory=dict)
    fresh_keys: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether it has several phases: a reduction or a matrix word has cut the rule."""
        return len(self.phases) > 1

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The trips through memory, in order."""
        return tuple(phase for phase in self.phases if isinstance(phase, Sweep))

    @property
    def calls(self) -> tuple[MatrixCall, ...]:
        """The matrix words between the sweeps, in order."""
        return tuple(phase for phase in self.phases if isinstance(phase, MatrixCall))

    def map_sweeps(self, change: Callable[[Program], Program]) -> Plan:
        """The same plan with the body of every sweep replaced by `change` of it."""
        return replace(
            self,
            phases=tuple(
                replace(phase, body=change(phase.body)) if isinstance(phase, Sweep) else phase
                for phase in self.phases
            ),
        )

    def map_programs(self, change: Callable[[Program], Program]) -> Plan:
        """The same plan with every program in it replaced by `change` of it."""
        return replace(
            self,
            scalars=change(self.scalars),
            phases=tuple(
                phase if isinstance(phase, MatrixCall) else replace(phase, body=change(phase.body))
                for phase in self.phases
            ),
        )

    def values(self) -> Iterator[Expr]:
        """Every value and condition of the phases, in order."""
        for phase in self.phases:
            yield from phase.args if isinstance(phase, MatrixCall) else expressions(phase.body)

    def kind(self, expr: Expr) -> Kind:
        """The kind of any expression of the plan."""
        return kind_of(expr, self.kinds.__getitem__)

    def coefficients(self) -> Iterator[Ref]:
        """Every name of the scalar program that the phases read, in order, each once."""
        seen: dict[Ref, None] = {}
        for expr in self.values():
            seen.update((r, None) for r in refs(expr) if self.kinds[r].is_scalar)
        return iter(seen)

    def fresh(self) -> tuple[State, ...]:
        """Return the states the rule asks `fresh` of; some are not there where the facts hold."""
        known = {state.key: state for state in self.algorithm.states}
        return tuple(known.get(key, State(key, key)) for key in self.fresh_keys)


def is_reduction(value: Expr) -> bool:
    """Whether a value is a reduction of something, as a statement of its own."""
    return isinstance(value, Call) and value.op in REDUCTIONS


def reads(expr: Expr) -> Iterator[Ref]:
    """The names whose values an expression reads: not those it only asks a property or fact of."""
    match expr:
        case Ref():
            yield expr
        case Call(op, _) if op == "fresh" or op in PROPERTIES:
            return
        case _:
            for child in children(expr):
                yield from reads(child)


def asked_fresh(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the states that a rule asks `fresh` of, in checkpoint order."""
    asked = {
        arg.name
        for expr in expressions(algorithm.rule)
        for node in walk(expr)
        if isinstance(node, Call) and node.op == "fresh"
        for arg in node.args
        if isinstance(arg, Ref)
    }
    return tuple(state.key for state in algorithm.states if state.symbol in asked)


def streams_of(algorithm: Algorithm, body: Program) -> tuple[Stream, ...]:
    """Parameter, gradient and tensor states, in the order every lowering takes them."""
    stored = {a.target.name for a in assigns(body)}
    states = (Stream(s.symbol, "state", s.symbol in stored, s) for s in algorithm.tensor_states())
    return (Stream(algorithm.param, "param", True), Stream(algorithm.grad, "grad", False), *states)


def streams_of_trip(
    algorithm: Algorithm,
    body: Program,
    stored: Collection[str],
    handed: tuple[str, ...] = (),
    called: tuple[str, ...] = (),
) -> tuple[Stream, ...]:
    """What one trip of several touches, in that order; last what matrix words take and made."""
    written = {a.target.name for a in assigns(body)}
    read = {r.name for e in expressions(body) for r in reads(e)} | written
    every = (replace(s, stored=s.name in stored) for s in streams_of(algorithm, body))
    return (
        *(s for s in every if s.name in read or s.stored),
        *(Stream(name, "local", True) for name in handed),
        *(Stream(name, "local", False) for name in called if name in read),
    )
