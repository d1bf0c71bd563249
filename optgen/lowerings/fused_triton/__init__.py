"""Lower to Triton: a prologue kernel in float64, and a kernel for each sweep and each finish.

The prologue is the scalar program. It packs the scalars that the phases read, in one array
per tensor. An elementwise rule has one sweep and no finish. A flag that decides which streams exist
is a constexpr. Every other condition is one of the packed scalars, so no value of a hyperparameter
causes a recompilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import why_not_in_triton
from optgen.ir.generated_names import plural
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.fused_triton.address_printer import uses
from optgen.lowerings.fused_triton.expression_printer import variable
from optgen.lowerings.fused_triton.phased_file import plan_context
from optgen.lowerings.fused_triton.prologue import PackedScalars, Prologue
from optgen.lowerings.fused_triton.split_phases import isolate_mixed_reductions
from optgen.lowerings.fused_triton.sweeps import (
    ARGUMENTS,
    FINISH_ARGUMENTS,
    codes_context,
    flags_of,
    print_loads,
    print_numbers,
    print_stores,
    print_sweep,
)
from optgen.lowerings.lowering import Lowering
from optgen.passes.kernel_plans import (
    addresses_of,
    is_flat_sweep,
    load_device_scalars,
)
from optgen.passes.order import KERNEL_PASSES, run
from optgen.passes.plan import plans

_PASSES = (isolate_mixed_reductions, *KERNEL_PASSES)


def lower(algorithm: Algorithm) -> Mapping[str, Any]:
    """Return the variables of the file's template."""
    algorithm = load_device_scalars(algorithm)
    all_plans = [run(_PASSES, p) for p in plans(algorithm)]
    if len(all_plans) == 1 and is_flat_sweep(all_plans[0]):
        return {"template": "fused_triton_elementwise.py.jinja"} | _flat_context(all_plans[0])
    contexts = [plan_context(plan, addresses_of(algorithm)) for plan in all_plans]
    return {
        "template": "fused_triton_phases.py.jinja",
        "algorithm": algorithm,
        "plans": contexts,
        "reduces_over_parameters": any(
            kernel["kind"] == "wide" for plan in contexts for kernel in plan["kernels"]
        ),
        "arguments": ARGUMENTS,
        "finish_arguments": FINISH_ARGUMENTS,
        "scalars": max(plan["scalars"] for plan in contexts),
    }


def _flat_context(plan: Plan) -> dict[str, Any]:
    """Return the template's variables for an elementwise rule."""
    (sweep,) = plan.sweeps
    packed = PackedScalars(plan, (sweep.body,), sweep.streams)
    prologue = Prologue(plan, packed, len(sweep.streams))
    prologue_lines = prologue.lines()
    prologue_text = "\n".join(prologue_lines)
    return {
        "algorithm": plan.algorithm,
        "streams": [_stream(s) for s in sweep.streams],
        "flags": flags_of(sweep.streams),
        "packed_scalars": list(packed.program_results),
        "plan": {
            "scalar_types": prologue.scalar_types(),
            "hyper_count": prologue.hyper_count,
            "prologue": prologue_lines,
            "prologue_doc": prologue.doc(),
            "prologue_entry": uses("entry", prologue_text),
            "prologue_hypers": uses("hyper", prologue_text),
            "prologue_shapes": False,
            "may_scale_loss": not plan.algorithm.is_function,  # with a gradient scaler
        },
        "loads": [
            *print_loads(sweep.streams, sweep.body, packed, may_hold_codes=True),
            *print_numbers(packed, sweep.body),
        ],
        "body": print_sweep(sweep.body, packed),
        "stores": print_stores(sweep.streams, may_hold_codes=True),
    }


FUSED_TRITON = Lowering(
    name="fused_triton",
    filename="fused_triton.py",
    template="fused_triton.py.jinja",
    lower=lower,
    refusal=why_not_in_triton,
)


def _stream(stream: Stream) -> dict[str, str]:
    """Return a stream's names in the kernel: its pointers, dtype and scales; and its block size."""
    names = {"list": variable(plural(stream.name)), "type": f"{stream.name.upper()}_T"}
    return names | codes_context(stream)
