"""Define a plan: the scalar program and the phases that update one bucket of tensors.

The scalar program computes every number that a sweep needs, once per parameter and in float64. It
reads the step count, the hyperparameters and the scalar states. A `Sweep` is one pass over memory.
In its body, tensor values are `Linear` forms and other ops on such forms. The coefficients of a
form are numbers, named scalars or their negations. An elementwise rule is one sweep. A reduction
ends a phase: a sweep accumulates the sum, and a `Finish` computes the values that the next sweep
reads. A matrix op ends a phase too, as a `MatrixCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from optgen.contract.states import Condition
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.kinds import Kind, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Program,
    Ref,
    assigns,
    children,
    expressions,
    walk,
)
from optgen.ir.ops import MAXIMA, OPS, PROPERTIES, REDUCTIONS

Role = Literal["param", "grad", "state", "local"]


@dataclass(frozen=True)
class Stream:
    """A list of tensors that a sweep reads or writes, in the variable `name`.

    A "local" stream is temporary: the input or the output of a matrix op.
    """

    name: str
    role: Role
    stored: bool
    state: State | None = None

    @property
    def when(self) -> str | None:
        """The condition under which the stream exists; None if it always does."""
        return self.state.when if self.state else None

    @property
    def condition(self) -> Condition | None:
        """The condition that `when` writes."""
        return self.state.condition if self.state else None


@dataclass(frozen=True)
class Sweep:
    """One pass over memory: the streams it touches and the program for each element.

    A statement whose value is a `sum` or `max_abs` of a tensor, or of its rows or columns, is a
    reduction, whose result the following `Finish` reads.
    """

    streams: tuple[Stream, ...]
    body: Program

    @property
    def reductions(self) -> tuple[Assign, ...]:
        """The statements whose value is a reduction, in order."""
        return tuple(a for a in assigns(self.body) if is_reduction(a.value))


@dataclass(frozen=True)
class Finish:
    """The program between two sweeps, which computes numbers, rows and columns.

    It reads reductions, scalars, properties of the parameter, and row and column states. It
    assigns row and column states, which it also stores, and names that later phases read. A
    reduction of row or column values (`mean(row_var)`) is a statement of its own.
    """

    body: Program


@dataclass(frozen=True)
class HostCall:
    """An op that the host calls between two phases, on values that earlier phases have stored."""

    target: Ref
    op: str
    args: tuple[Expr, ...]
    quote: tuple[str, ...] = ()


@dataclass(frozen=True)
class MatrixCall(HostCall):
    """A matrix op between two sweeps; `args[0]` is a local stream that the first sweep stores."""

    @property
    def options(self) -> tuple[str, ...]:
        """The values of options; "parameter" is the dtype of `args[0]`."""
        options = self.args[OPS[self.op].arity :]
        return tuple(str(o.value) if isinstance(o, Const) else "parameter" for o in options)


@dataclass(frozen=True)
class WideCall(HostCall):
    """A reduction over parameters between two finishes; `args[0]` is one number per parameter.

    A `condition` is about hyperparameters; the host calls the op only if it holds. Only Triton's
    plans have such calls. In other plans the reduction is a statement of a `Finish`.
    """

    condition: Expr | None = None


Phase: TypeAlias = Sweep | Finish | MatrixCall | WideCall


@dataclass(frozen=True)
class Plan:
    """The scalar program and the phases of one algorithm, and the kind of every name.

    * `facts`: the values of shape predicates (`factored`) that this plan is specialized for. Its
      algorithm has no branches on them any more.
    * `fresh_keys`: the keys of the states that the rule calls `fresh` on, in checkpoint order. They
      are the same for all plans of a rule.
    """

    algorithm: Algorithm
    scalars: Program
    phases: tuple[Phase, ...]
    kinds: Mapping[Ref, Kind]
    facts: Mapping[str, bool] = field(default_factory=dict)
    fresh_keys: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Tell whether the plan has several phases, because of a reduction or a matrix op."""
        return len(self.phases) > 1

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps, in order."""
        return tuple(phase for phase in self.phases if isinstance(phase, Sweep))

    @property
    def matrix_calls(self) -> tuple[MatrixCall, ...]:
        """The matrix ops between the sweeps, in order."""
        return tuple(phase for phase in self.phases if isinstance(phase, MatrixCall))

    def map_sweeps(self, change: Callable[[Program], Program]) -> Plan:
        """Return the plan with the body of every sweep replaced by `change(body)`."""
        return replace(
            self,
            phases=tuple(
                replace(phase, body=change(phase.body)) if isinstance(phase, Sweep) else phase
                for phase in self.phases
            ),
        )

    def map_programs(self, change: Callable[[Program], Program]) -> Plan:
        """Return the plan with every program in it replaced by `change(program)`."""
        return replace(
            self,
            scalars=change(self.scalars),
            phases=tuple(
                phase if isinstance(phase, HostCall) else replace(phase, body=change(phase.body))
                for phase in self.phases
            ),
        )

    def values(self) -> Iterator[Expr]:
        """Yield every value and condition of the phases, in order."""
        for phase in self.phases:
            yield from phase.args if isinstance(phase, HostCall) else expressions(phase.body)

    def kind(self, expr: Expr) -> Kind:
        """Return the kind of an expression of the plan."""
        return kind_of(expr, self.kinds.__getitem__)

    def coefficients(self) -> Iterator[Ref]:
        """Yield each scalar that the phases read, without repeats, in the order of first use."""
        seen: dict[Ref, None] = {}
        for expr in self.values():
            seen.update((r, None) for r in reads(expr) if self.kinds[r].is_scalar)
        return iter(seen)

    def fresh_states(self) -> tuple[State, ...]:
        """Return the states that the rule calls `fresh` on.

        A placeholder stands for a state that does not exist under the facts of this plan.
        """
        states_by_key = {state.key: state for state in self.algorithm.states}
        return tuple(states_by_key.get(key, State(key, key)) for key in self.fresh_keys)


def is_reduction(value: Expr) -> bool:
    """Tell whether a value is a reduction."""
    return isinstance(value, Call) and value.op in REDUCTIONS


def is_maximum(value: Expr) -> bool:
    """Tell whether a value is a reduction to the largest magnitude, not to a sum."""
    return isinstance(value, Call) and value.op in MAXIMA


def reads(expr: Expr) -> Iterator[Ref]:
    """Yield the names whose values an expression reads. `fresh` and properties read no value."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Ref):
            yield node
        elif not (isinstance(node, Call) and (node.op == "fresh" or node.op in PROPERTIES)):
            stack += children(node)[::-1]


def read_before_assigned(program: Program) -> dict[str, None]:
    """Return the names that a program may read before it assigns them, in order."""
    read, _ = _read_first(program, frozenset())
    return read


def _read_first(
    program: Program, assigned: frozenset[str]
) -> tuple[dict[str, None], frozenset[str]]:
    """Return the names read before they are assigned, and those assigned on every path.

    `assigned` are the names that have values before the program.
    """
    read: dict[str, None] = {}
    for stmt in program:
        first_read = stmt.value if isinstance(stmt, Assign) else stmt.condition
        read |= {r.name: None for r in reads(first_read) if r.name not in assigned}
        if isinstance(stmt, Assign):
            assigned |= {stmt.target.name}
        else:
            arms = [_read_first(arm, assigned) for arm in (stmt.then, stmt.orelse)]
            read |= arms[0][0] | arms[1][0]
            assigned = arms[0][1] & arms[1][1]
    return read, assigned


def fresh_keys_of(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the states that a rule calls `fresh` on, in checkpoint order."""
    symbols = {
        arg.name
        for expr in expressions(algorithm.rule)
        for node in walk(expr)
        if isinstance(node, Call) and node.op == "fresh"
        for arg in node.args
        if isinstance(arg, Ref)
    }
    return tuple(state.key for state in algorithm.states if state.symbol in symbols)


def streams_of(algorithm: Algorithm, body: Program) -> tuple[Stream, ...]:
    """Return the streams of an elementwise sweep, in the order that every lowering uses."""
    stored = {a.target.name for a in assigns(body)}
    states = (Stream(s.symbol, "state", s.symbol in stored, s) for s in algorithm.tensor_states())
    return (
        Stream(algorithm.param, "param", stored=True),
        Stream(algorithm.grad, "grad", stored=False),
        *states,
    )


def streams_of_sweep(
    algorithm: Algorithm,
    body: Program,
    stored: Collection[str],
    call_inputs: tuple[str, ...] = (),
    call_results: tuple[str, ...] = (),
) -> tuple[Stream, ...]:
    """Return the streams that one of several sweeps touches, in the order of `streams_of`.

    A sweep over random numbers alone gets the parameter, whose size it needs.

    Args:
        algorithm: the algorithm.
        body: the program of the sweep.
        stored: the names that the sweep stores.
        call_inputs: inputs of matrix ops, which the sweep stores; they come after the states.
        call_results: results of matrix ops; those that the sweep reads come last.
    """
    written = {a.target.name for a in assigns(body)}
    read = {r.name for e in expressions(body) for r in reads(e)} | written
    streams = (replace(s, stored=s.name in stored) for s in streams_of(algorithm, body))
    touched = (
        *(s for s in streams if s.name in read or s.stored),
        *(Stream(name, "local", stored=True) for name in call_inputs),
        *(Stream(name, "local", stored=False) for name in call_results if name in read),
    )
    return touched or (Stream(algorithm.param, "param", stored=False),)
