"""Store zeros in the gradients, for an algorithm whose step leaves them at zero.

The last sweep that reads the gradient stores the zeros, because the gradient's elements are in the
cache then. A separate call would fetch them from memory again, only to overwrite them.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Assign, Const, Linear, Ref, Term
from optgen.ir.plan import Plan, Stream, Sweep

_ZERO = Linear((Term(Const(0), (), ()),))


def zero_gradients(plan: Plan) -> Plan:
    """Return the plan with a store of zeros if its algorithm has `zero_grad`."""
    algorithm = plan.algorithm
    if not algorithm.zero_grad:
        return plan
    grad = algorithm.grad
    version = max(ref.version for ref in plan.kinds if ref.name == grad) + 1
    zero = Assign(Ref(grad, version), _ZERO, ("leave the gradient at zero",))
    phase_index = _last_sweep_index(plan, grad)
    sweep = plan.phases[phase_index]
    assert isinstance(sweep, Sweep)
    others = [stream for stream in sweep.streams if stream.name != grad]
    follows_param = bool(others) and others[0].role == "param"
    grad_position = 1 if follows_param else 0
    streams = (*others[:grad_position], Stream(grad, "grad", stored=True), *others[grad_position:])
    phases = list(plan.phases)
    phases[phase_index] = Sweep(streams, (*sweep.body, zero))
    kinds = {**plan.kinds, zero.target: plan.kinds[Ref(grad)]}
    return replace(plan, phases=tuple(phases), kinds=kinds)


def _last_sweep_index(plan: Plan, grad: str) -> int:
    """Return the index of the last sweep that reads the gradient, or else of the last sweep."""
    sweeps = [i for i, phase in enumerate(plan.phases) if isinstance(phase, Sweep)]
    readers = [i for i in sweeps if _reads(plan.phases[i], grad)]
    return (readers or sweeps)[-1]


def _reads(phase: object, grad: str) -> bool:
    return isinstance(phase, Sweep) and any(stream.name == grad for stream in phase.streams)
