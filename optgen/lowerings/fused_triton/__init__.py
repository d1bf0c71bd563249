"""Plan -> two Triton kernels: a float64 prologue for the scalars, one sweep for all tensors.

What the sweep reads of the scalar program travels in a row of numbers per tensor. A flag that
decides which streams there are is a constexpr; every other condition is a number of that row, so
that no value of a hyperparameter ever compiles a kernel anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optgen.ir.plan import Plan, Stream
from optgen.ir.variables import plural
from optgen.lowerings.base import Lowering, planned
from optgen.lowerings.fused_triton.expressions import variable
from optgen.lowerings.fused_triton.prologue import Prologue
from optgen.lowerings.fused_triton.row import Row
from optgen.lowerings.fused_triton.sweep import presence, print_loads, print_stores, print_sweep
from optgen.passes.fold_denominators import fold_denominators
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.number_choices import number_choices
from optgen.passes.share_divisors import share_divisors
from optgen.passes.take_differences import take_differences

_PASSES = (number_choices, take_differences, fold_denominators, share_divisors, hoist_scalars)


def context(plan: Plan) -> Mapping[str, Any]:
    """What the template lays out."""
    (sweep,) = plan.sweeps
    row = Row(plan, sweep)
    prologue = Prologue(plan, row, len(sweep.streams))
    return {
        "algorithm": plan.algorithm,
        "streams": [_stream(s) for s in sweep.streams],
        "flags": _flags(sweep.streams),
        "scalar_types": prologue.scalar_types(),
        "width": prologue.width,
        "row": list(row.entries),
        "prologue": prologue.lines(),
        "loads": print_loads(sweep.streams, row),
        "body": print_sweep(sweep.body, row),
        "stores": print_stores(sweep.streams),
    }


FUSED_TRITON = Lowering(
    name="fused_triton",
    filename="fused_triton.py",
    template="fused_triton.py.jinja",
    lower=planned(_PASSES, context),
)


def _stream(stream: Stream) -> dict[str, str]:
    """What kernels call a stream's address and its type."""
    return {"list": variable(plural(stream.name)), "type": f"{stream.name.upper()}_T"}


def _flags(streams: tuple[Stream, ...]) -> dict[str, str]:
    """Every constexpr flag, and how a bucket tells its value."""
    flags = {}
    for stream in streams:
        condition = presence(stream)
        if stream.state and condition:
            negated = "not " if condition.startswith("not ") else ""
            flags[condition.removeprefix("not ")] = f'{negated}bucket.has("{stream.state.key}")'
    return flags
