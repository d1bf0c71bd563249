"""Adapt plans to kernels, which run the scalar program on the device and know only numbers."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Linear,
    Ref,
    Term,
    map_expressions,
    rebuild,
    refs,
)
from optgen.ir.ops import CONDITION_OPERANDS
from optgen.ir.plan import Plan, Stream, Sweep


def is_one_sweep(plan: Plan) -> bool:
    """Tell whether a plan is one sweep."""
    return len(plan.phases) == 1 and isinstance(plan.phases[0], Sweep)


def has_flat_sweeps(plan: Plan) -> bool:
    """Tell whether no sweep of a plan goes over rows, columns or matrices."""
    axes = {kind.axes for kind in plan.kinds.values()}
    return axes <= {Axes.NONE, Axes.TENSOR} and not plan.matrix_calls


def load_device_scalars(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with its scalars on the device as states of the scalar program.

    The scalar program of a kernel runs on the device itself, so the host need not wait for a
    state's value. Every phase may read the old values, like those of other scalar states. The new
    values come from reductions, so a `Finish` stores them.
    """
    if not any(state.on_device for state in algorithm.states):
        return algorithm  # the same object, because plans are cached by identity
    states = tuple(replace(state, on_device=False) for state in algorithm.states)
    return replace(algorithm, states=states)


def legend_of_choices(hyper: Hyper) -> str:
    """Return a comment that says which number stands for which choice; "" for other types."""
    values = ", ".join(f"{index} = {value!r}" for index, value in enumerate(hyper.choices))
    return f"{hyper.name}: {values}" if hyper.type == "choice" else ""


def encode_choices(plan: Plan) -> Plan:
    """Return the plan with choices compared by their index; -1 stands for any other value."""
    choices = {h.name: h.choices for h in plan.algorithm.hypers if h.type == "choice"}

    def index_of(name: str, value: str | None) -> Const:
        values = choices[name]
        return Const(values.index(value) if value in values else -1)

    def with_indices(expr: Expr) -> Expr:
        match expr:
            case Call("is_none", (Ref(name) as ref,)) if name in choices:
                return Call("==", (ref, index_of(name, None)), expr.place)
            case Call("==" | "!=", (Ref(name) as ref, Const(str() as value))) if name in choices:
                return replace(expr, args=(ref, index_of(name, value)))
        return rebuild(expr, with_indices)

    if not choices:
        return plan
    return plan.map_programs(lambda program: map_expressions(program, with_indices))


_ZERO = Linear((Term(Const(0), (), ()),))


def zero_gradients(plan: Plan) -> Plan:
    """Return the plan with a store of zeros in the gradients if its algorithm has `zero_grad`.

    The last sweep that reads the gradient stores the zeros, because the gradient's elements are in
    the cache then. A separate call would fetch them from memory again, only to overwrite them.
    """
    algorithm = plan.algorithm
    if not algorithm.zero_grad:
        return plan
    grad = algorithm.grad
    version = max(ref.version for ref in plan.kinds if ref.name == grad) + 1
    zero = Assign(Ref(grad, version), _ZERO, ("leave the gradient at zero",))
    sweeps = {index: p for index, p in enumerate(plan.phases) if isinstance(p, Sweep)}
    readers = [i for i, p in sweeps.items() if any(stream.name == grad for stream in p.streams)]
    phase_index = (readers or [*sweeps])[-1]
    sweep = sweeps[phase_index]
    others = [stream for stream in sweep.streams if stream.name != grad]
    follows_param = bool(others) and others[0].role == "param"
    grad_position = 1 if follows_param else 0
    streams = (*others[:grad_position], Stream(grad, "grad", stored=True), *others[grad_position:])
    phases = list(plan.phases)
    phases[phase_index] = Sweep(streams, (*sweep.body, zero))
    kinds = {**plan.kinds, zero.target: plan.kinds[Ref(grad)]}
    return replace(plan, phases=tuple(phases), kinds=kinds)


ROUNDED = "in_state_dtype"
"""Op that rounds to the state's dtype. Only the printers of C++ and Triton get it."""

_LARGEST_EXACT = 256  # every floating-point dtype represents all integers up to 256


def round_state(value: Expr, state: str) -> Expr:
    """Return the value assigned to a scalar state, rounded wherever torch's for-loop rounds.

    torch keeps a scalar state in a 0-dim tensor, and every result computed with that tensor is a
    0-dim tensor of the same dtype. So in an assignment to the state, an operation with an operand
    that derives from the state runs in the state's dtype, on operands of that dtype. All other
    operations run on Python floats. Outside of assignments to the state, the state is read as a
    float.
    """
    if isinstance(value, Call) and _derives_from(value, state):
        value = replace(value, args=_rounded_operands(value, state))
    return value if _is_exact(value, state) else Call(ROUNDED, (value,))


def _derives_from(expr: Expr, state: str) -> bool:
    """Tell whether an expression is computed from the state."""
    return any(ref.name == state for ref in refs(expr))


def _rounded_operands(call: Call, state: str) -> tuple[Expr, ...]:
    """Return the rounded operands of an op, one of which derives from the state."""
    num_conditions = CONDITION_OPERANDS.get(call.op, 0)
    conditions = (  # their comparisons with the state are in the state's dtype
        replace(arg, args=_rounded_operands(arg, state))
        if isinstance(arg, Call) and _derives_from(arg, state)
        else arg
        for arg in call.args[:num_conditions]
    )
    return (*conditions, *(round_state(arg, state) for arg in call.args[num_conditions:]))


def _is_exact(expr: Expr, state: str) -> bool:
    """Tell whether rounding changes nothing: for the state itself, and for small integers."""
    match expr:
        case Ref(name):
            return name == state
        case Const(int() as value):
            return abs(value) <= _LARGEST_EXACT
    return False
