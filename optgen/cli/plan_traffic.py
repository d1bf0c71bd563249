"""Derive from an algorithm's plans which tensors a step reads and writes, for the benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from optgen.bench.roofline import Access, Traffic
from optgen.bench.variants import USER_CLASSES
from optgen.cli.locate_specs import spec_path, specs_folder
from optgen.ir.algorithm import Algorithm
from optgen.ir.binding_times import Axes
from optgen.ir.nodes import assigns, expressions
from optgen.ir.plan import Finish, MatrixCall, Plan, Stream, Sweep, reads
from optgen.ir.whole_matrices import why_uncut
from optgen.passes.derive import derive
from optgen.passes.plan import plans
from optgen.passes.zero_gradients import zero_gradients
from optgen.spec.base_spec import read_base
from optgen.spec.read_spec import read_spec

_SHAPE_BY_AXES = {Axes.ROW: "row", Axes.COLUMN: "col"}


@cache
def traffic(name: str) -> tuple[Traffic, ...] | None:
    """Return the memory traffic of a class's step, for each plan of its rule.

    Return None if the rule multiplies matrices, because memory does not limit such a step.
    """
    source = USER_CLASSES[name].spec if name in USER_CLASSES else spec_path(name)
    (algorithm,) = (each for each in read_spec(source) if each.name == name)
    base = read_base(algorithm, specs_folder())
    return traffic_of(algorithm if base is None else derive(algorithm, base))


def traffic_of(algorithm: Algorithm) -> tuple[Traffic, ...] | None:
    """Return the memory traffic of a step of an algorithm, or None if it multiplies matrices."""
    all_plans = list(map(zero_gradients, plans(algorithm)))
    matrix_calls = (
        phase for plan in all_plans for phase in plan.phases if isinstance(phase, MatrixCall)
    )
    if any(matrix_calls) or why_uncut(algorithm):
        return None
    return tuple(Traffic(tuple(_accesses(plan)), plan.facts) for plan in all_plans)


def _accesses(plan: Plan) -> Iterator[tuple[Access, ...]]:
    """Yield the tensors that each phase accesses.

    A sweep reads streams, rows and columns. A finish updates row and column states. Sums, and
    values that only the next sweep reads, need no memory traffic.
    """
    for phase in plan.phases:
        if isinstance(phase, Sweep):
            yield (*map(_stream_access, phase.streams), *_row_and_column_reads(plan, phase))
        elif isinstance(phase, Finish):
            updates = tuple(_row_and_column_updates(plan, phase))
            if updates:
                yield updates


def _stream_access(stream: Stream) -> Access:
    if stream.state:
        key = stream.state.key
    else:
        key = stream.name if stream.role == "local" else stream.role
    return Access(key, stored=stream.stored, when=stream.when)


def _row_and_column_reads(plan: Plan, sweep: Sweep) -> Iterator[Access]:
    """Yield the rows and columns that a sweep reads."""
    assigned = {stmt.target.name for stmt in assigns(sweep.body)}
    refs = (ref for expr in expressions(sweep.body) for ref in reads(expr))
    axes = {ref.name: plan.kinds[ref].axes for ref in refs if ref.name not in assigned}
    keys = {state.symbol: state.key for state in plan.algorithm.factor_states()}
    for name, axis in axes.items():
        if axis in _SHAPE_BY_AXES:
            yield Access(keys.get(name, name), shape=_SHAPE_BY_AXES[axis])


def _row_and_column_updates(plan: Plan, finish: Finish) -> Iterator[Access]:
    """Yield the row and column states that a finish updates."""
    assigned = {stmt.target.name for stmt in assigns(finish.body)}
    for state in plan.algorithm.factor_states():
        if state.symbol in assigned:
            yield Access(state.key, stored=True, shape=str(state.shape))
