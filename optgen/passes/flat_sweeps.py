"""Tell which plans are only one sweep, and which have sweeps over flat tensors only."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.matrix_axes import Axes
from optgen.ir.nodes import Call, expressions, walk
from optgen.ir.ops import PROPERTIES, RANDOM_OPS
from optgen.ir.plan import Plan, Sweep
from optgen.ir.whole_matrices import why_not_in_triton, why_uncut
from optgen.passes.load_device_scalars import load_device_scalars
from optgen.passes.plan import plans


def is_one_sweep(plan: Plan) -> bool:
    """Tell whether a plan is one sweep."""
    return len(plan.phases) == 1 and isinstance(plan.phases[0], Sweep)


def is_flat_sweep(plan: Plan) -> bool:
    """Tell whether a plan is one sweep over all tensors that reads no sizes and draws nothing."""
    exprs = (*expressions(plan.scalars), *plan.values())
    words = {e.op for expr in exprs for e in walk(expr) if isinstance(e, Call)}
    streams = [stream for sweep in plan.sweeps for stream in sweep.streams]
    has_all_streams = plan.algorithm.is_function or len(streams) == len(
        addresses_of(plan.algorithm)
    )
    needs_no_shape = words.isdisjoint((*PROPERTIES, *RANDOM_OPS))
    return is_one_sweep(plan) and has_all_streams and needs_no_shape


def has_flat_sweeps(plan: Plan) -> bool:
    """Tell whether no sweep of a plan goes over rows, columns or matrices."""
    axes = {kind.axes for kind in plan.kinds.values()}
    return axes <= {Axes.NONE, Axes.TENSOR} and not plan.matrix_calls


def addresses_of(algorithm: Algorithm) -> list[str]:
    """Return the names of the rows in a bucket's table of addresses: param, grad, state keys."""
    return ["param", "grad", *(s.key for s in algorithm.states if s.shape != "scalar")]


def codes_readers(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the fused lowerings that read the codes of an algorithm's states of 8 bits.

    Kernels decode whole blocks of flat tensors. So no sweep may go over rows, columns or matrices.
    """
    if not algorithm.has_codes or why_uncut(algorithm):
        return ()
    if not all(map(has_flat_sweeps, plans(load_device_scalars(algorithm)))):
        return ()
    return ("fused_cpu",) if why_not_in_triton(algorithm) else ("fused_cpu", "fused_triton")
