"""Move each reduction that mixes rows and columns into a sweep of its own, which reads no stream.

A `Finish` has one loop over rows and one over columns. A value that depends on both, as in
`rms(r * k)`, has one value per element, and only sweeps have tiles of elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optgen.ir.kinds import Axes, kind_of
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, filter_assigns, map_values
from optgen.ir.plan import Finish, Phase, Plan, Sweep, is_reduction
from optgen.lowerings.fused_triton.split_finishes import dependents
from optgen.passes.hoist_between_sweeps import hoist_between_sweeps
from optgen.passes.linear import Linearizer
from optgen.passes.ranges import declared_ranges


def isolate_mixed_reductions(plan: Plan) -> Plan:
    """Return a plan whose finishes reduce only values of rows, of columns or of matrices."""
    phases: list[Phase] = []
    for phase in plan.phases:
        phases += _split(plan, phase.body) if isinstance(phase, Finish) else [phase]
    if len(phases) == len(plan.phases):
        return plan
    return hoist_between_sweeps(replace(plan, phases=tuple(phases)))


def _split(plan: Plan, body: Program) -> Iterator[Phase]:
    """Yield the phases of a finish: a sweep for its mixed reductions, between two finishes.

    The second finish has all that depends on a mixed reduction, and is split in the same way.
    """
    mixed = {a.target for a in assigns(body) if _is_mixed(plan, a)}
    if not mixed:
        yield Finish(body)
        return
    dependent = dependents(body, mixed)
    first_body = filter_assigns(body, lambda a: a.target not in dependent | mixed)
    if first_body:
        yield Finish(first_body)
    reductions = filter_assigns(body, lambda a: a.target in mixed - dependent)
    yield Sweep((), _with_linear_operands(plan, reductions))
    yield from _split(plan, filter_assigns(body, lambda a: a.target in dependent))


def _is_mixed(plan: Plan, stmt: Assign) -> bool:
    """Tell whether a statement reduces a value that depends on both rows and columns."""
    value = stmt.value
    if not is_reduction(value) or not isinstance(value, Call):
        return False
    return plan.kind(value.args[0]).axes is Axes.TENSOR


def _with_linear_operands(plan: Plan, body: Program) -> Program:
    """Return the reductions of a sweep with their operands in linear form."""

    def is_tensor(expr: Expr) -> bool:
        return kind_of(expr, plan.kinds.__getitem__).is_tensor

    def no_terms(_: Ref) -> None:
        return None

    linearizer = Linearizer(is_tensor, no_terms, declared_ranges(plan.algorithm))

    def with_linear_operand(value: Expr) -> Expr:
        assert isinstance(value, Call)
        return replace(value, args=(linearizer.linear(value.args[0]),))

    return map_values(body, with_linear_operand)
