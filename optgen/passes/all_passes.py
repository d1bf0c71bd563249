"""List the passes of each target after planning, in order.

The passes before are the steps of `plan_rule.py`: prepare the rule, number the versions of its
names, cut it into phases, and split each sweep into scalars and sums of terms. Then each target
changes the plan for itself. All of this algebra needs coefficients as expressions. So it comes
before `hoist_scalars`, which names them.

Two neighbours without a reason at their place may be swapped: the code of some thirty rules stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeAlias

from optgen.ir.plan import Plan
from optgen.passes.hoist_between_sweeps import invert_factors
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.prepare_for_kernels import encode_choices
from optgen.passes.python_operators import truths_to_bool, use_ieee_operators
from optgen.passes.sweep_algebra import (
    factor_out_divisors,
    fold_denominators,
    merge_square_roots,
    use_lerp_form,
)

PlanPass: TypeAlias = Callable[[Plan], Plan]

KERNEL_PASSES: tuple[PlanPass, ...] = (
    encode_choices,
    use_lerp_form,
    invert_factors,
    merge_square_roots,
    fold_denominators,
    factor_out_divisors,  # after folding, which multiplies the coefficients of single terms
    hoist_scalars,
)
"""Passes for C++ and for Triton: a kernel computes all of a sweep at once, so divisions count."""

FOREACH_PASSES: tuple[PlanPass, ...] = (
    merge_square_roots,
    fold_denominators,
    hoist_scalars,
    inline_scalars,  # takes back the names of short scalars that are used once
    use_ieee_operators,  # after inlining, which knows an inverse by its `/`
    truths_to_bool,
)
"""Passes for foreach: an operation is a pass over memory, so its algebra saves whole operations."""

FORLOOP_PASSES: tuple[PlanPass, ...] = (hoist_scalars, inline_scalars, use_ieee_operators)
"""Passes for the for-loop, which keeps the author's roots and divisions."""

OUTLINED_PASSES: tuple[PlanPass, ...] = (hoist_scalars, use_ieee_operators, truths_to_bool)
"""Passes for rules on whole matrices whose elementwise parts become functions."""


def run(passes: Iterable[PlanPass], plan: Plan) -> Plan:
    """Return the plan after some passes."""
    return reduce(lambda changed, change: change(changed), passes, plan)
