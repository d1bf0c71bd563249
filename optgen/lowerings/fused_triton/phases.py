"""What the template lays out of a rule with phases: for every plan, its kernels in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Ref, expressions, walk
from optgen.ir.ops import PROPERTIES
from optgen.ir.plan import Finish, MatrixCall, Plan, Sweep
from optgen.ir.value_kinds import Axes
from optgen.lowerings.fused_triton.expressions import variable
from optgen.lowerings.fused_triton.finish import FinishText
from optgen.lowerings.fused_triton.finish_kernels import FinishKernel
from optgen.lowerings.fused_triton.kernels import Kernels, touched
from optgen.lowerings.fused_triton.places import uses
from optgen.lowerings.fused_triton.prologue import Prologue
from optgen.lowerings.fused_triton.row import Row
from optgen.lowerings.fused_triton.slots import (
    SMALL,
    Slots,
    is_by_matrix,
    made_small,
    read_by,
    slots_of,
)
from optgen.lowerings.fused_triton.split_finishes import split_finishes, sums_left

Context = dict[str, Any]


def addresses_of(algorithm: Algorithm) -> list[str]:
    """The rows of addresses in a bucket's table, whatever its tensors' facts: keys of states."""
    return ["param", "grad", *(s.key for s in algorithm.states if s.shape != "scalar")]


def is_elementwise(plan: Plan) -> bool:
    """Whether it is one sweep of all its tensors that asks nothing of a parameter's shape."""
    exprs = (*expressions(plan.scalars), *plan.values())
    words = {e.op for expr in exprs for e in walk(expr) if isinstance(e, Call)}
    streams = [stream for sweep in plan.sweeps for stream in sweep.streams]
    every = plan.algorithm.is_function or len(streams) == len(addresses_of(plan.algorithm))
    return len(plan.phases) == 1 and every and words.isdisjoint(PROPERTIES)


def plan_context(plan: Plan, addresses: Sequence[str]) -> Context:
    """The kernels of one plan, and the memory that they share."""
    plan = split_finishes(plan)
    row = _row(plan)
    slots = _slots(plan, row)
    prologue = Prologue(plan, row, len(addresses))
    tiles = is_by_matrix(plan, *plan.phases)
    names = list(dict.fromkeys(s.name for w in plan.sweeps for s in w.streams if s.role == "local"))
    fresh = [state.key for state in plan.fresh()]
    table = [*addresses, *prologue.scalar_types(), *fresh, *names]
    kernels = list(_kernels(plan, Kernels(plan, table, names, row, slots, tiles)))
    sweeps = [k for k in kernels if k["sort"] == "sweep"]
    facts = [f if true else f"not_{f}" for f, true in plan.facts.items()]
    most = {key: max(len(k[key]) for k in sweeps) for key in ("sums", "row_sums", "column_sums")}
    most["parts"] = sum(k.get("parts", 0) for k in kernels)
    lines = {f"{axes.name.lower()}_values": slots.counts[axes] for axes in SMALL}
    numbers = prologue.lines()
    return {
        "prefix": "_".join([plan.algorithm.module, *facts]),
        "suffix": "_".join(facts),
        "facts": tuple(plan.facts.values()),
        "tiles": tiles,
        "scalars": row.width,
        "scalar_types": prologue.scalar_types(),
        "width": prologue.width,
        "prologue": numbers,
        "scaled": True,
        "prologue_shapes": uses("shape", "\n".join(numbers)),
        "kernels": kernels,
        "needs": lines | most | {"locals": tuple(names)},
    }


def _row(plan: Plan) -> Row:
    bodies = [p.body for p in plan.phases if not isinstance(p, MatrixCall)]
    streams = [s for sweep in plan.sweeps for s in sweep.streams]
    numbers = [variable(r.name) for r in _crossing(plan) if plan.kinds[r].axes is Axes.NONE]
    return Row(plan, bodies, streams, dict.fromkeys(numbers))


def _slots(plan: Plan, row: Row) -> Slots:
    crossing = list(_crossing(plan))
    for phase in plan.phases:
        if isinstance(phase, Finish):
            crossing += FinishText(plan, phase, row, slots_of(plan, ())).crossing()
    return slots_of(plan, crossing)


def _crossing(plan: Plan) -> Iterator[Ref]:
    """What one kernel makes small and another reads; sums go to the finish that follows."""
    for i, phase in enumerate(plan.phases):
        left = sums_left(plan, phase) if isinstance(phase, Finish) else ()
        handed = {a.target for a in left}
        for ref in made_small(phase):
            after = i + 1 + (isinstance(phase, Sweep) or ref in handed)
            if any(ref in read_by(p) for p in plan.phases[after:]):
                yield ref


def _kernels(plan: Plan, kernels: Kernels) -> Iterator[Context]:
    sweeps, finishes, unscaled = count(1), count(1), False
    for i, phase in enumerate(plan.phases):
        if isinstance(phase, Sweep):
            reads = any(s.role == "grad" for s in touched(phase))
            context = kernels.sweep(phase, unscales=reads and not unscaled)
            yield context | {"number": next(sweeps)}
            unscaled |= reads
        elif isinstance(phase, Finish):
            before = plan.phases[i - 1] if i else None
            yield FinishKernel(kernels, phase, before).context() | {"number": next(finishes)}
        else:
            yield kernels.call(phase)
