"""Plan -> two Triton kernels: a float64 prologue for the scalars, one sweep for all tensors.

What the sweep reads of the scalar program travels in a row of numbers per tensor. A flag that
decides which streams there are is a constexpr; every other condition is a number of that row, so
that no value of a hyperparameter ever compiles a kernel anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import plural
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.base import Lowering
from optgen.lowerings.fused_triton.expressions import variable
from optgen.lowerings.fused_triton.kernels import ARGUMENTS
from optgen.lowerings.fused_triton.phases import addresses_of, is_elementwise, plan_context
from optgen.lowerings.fused_triton.prologue import Prologue
from optgen.lowerings.fused_triton.row import Row
from optgen.lowerings.fused_triton.sweep import (
    flags_of,
    print_loads,
    print_numbers,
    print_stores,
    print_sweep,
)
from optgen.lowerings.fused_triton.sweep_products import sweep_products
from optgen.passes.fold_denominators import fold_denominators
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.join_roots import join_roots
from optgen.passes.number_choices import number_choices
from optgen.passes.plan import plans
from optgen.passes.share_divisors import share_divisors
from optgen.passes.take_differences import take_differences

_PASSES = (
    sweep_products,
    number_choices,
    take_differences,
    join_roots,
    fold_denominators,
    share_divisors,
    hoist_scalars,
)


def lower(algorithm: Algorithm) -> Mapping[str, Any]:
    """What the template of an algorithm's file lays out."""
    found = [reduce(lambda done, change: change(done), _PASSES, p) for p in plans(algorithm)]
    if len(found) == 1 and is_elementwise(found[0]):
        return {"template": "fused_triton_elements.py.jinja"} | context(found[0])
    made = [plan_context(plan, addresses_of(algorithm)) for plan in found]
    return {
        "template": "fused_triton_phases.py.jinja",
        "algorithm": algorithm,
        "plans": made,
        "arguments": ARGUMENTS,
        "scalars": max(plan["scalars"] for plan in made),
    }


def context(plan: Plan) -> dict[str, Any]:
    """What the template lays out of an elementwise rule."""
    (sweep,) = plan.sweeps
    row = Row(plan, (sweep.body,), sweep.streams)
    prologue = Prologue(plan, row, len(sweep.streams))
    return {
        "algorithm": plan.algorithm,
        "streams": [_stream(s) for s in sweep.streams],
        "flags": flags_of(sweep.streams),
        "row": list(row.entries),
        "plan": {
            "scalar_types": prologue.scalar_types(),
            "width": prologue.width,
            "prologue": prologue.lines(),
            "prologue_shapes": False,
            "scaled": not plan.algorithm.is_function,  # whether a gradient scaler has a say
        },
        "loads": [*print_loads(sweep.streams), *print_numbers(row, sweep.body)],
        "body": print_sweep(sweep.body, row),
        "stores": print_stores(sweep.streams),
    }


FUSED_TRITON = Lowering(
    name="fused_triton",
    filename="fused_triton.py",
    template="fused_triton.py.jinja",
    lower=lower,
)


def _stream(stream: Stream) -> dict[str, str]:
    """What kernels call a stream's address and its type."""
    return {"list": variable(plural(stream.name)), "type": f"{stream.name.upper()}_T"}
