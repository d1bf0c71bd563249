"""Evaluate a rule on float64 tensors, one parameter at a time: the reference for all lowerings.

Every lowering is tested against this module, so it is simple and never optimized. It runs the
statements in the author's order and takes the branch whose condition holds. If a rule reduces over
several parameters, they are evaluated together: each waits at the reduction for the others.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.contract.states import AT_LEAST_FLOAT32, FACTS, RANK, fact_holds
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.kinds import Axes, Kind, declared_kinds, height, kind_of, width
from optgen.ir.meanings import MEANINGS
from optgen.ir.nodes import Assign, Call, Const, Expr, If, Linear, Program, Ref, refs
from optgen.ir.ops import RANDOM_OPS, WIDE_OPS
from optgen.ir.random_numbers import positions
from optgen.ir.rounding import quantized


def evaluate(
    algorithm: Algorithm,
    hypers: Mapping[str, Any],
    param: Tensor,
    grad: Tensor,
    state: Mapping[str, Any],
    scalar_dtype: torch.dtype = torch.float32,
    storage_dtype: torch.dtype | None = None,
    index: int = 0,
) -> tuple[Tensor, dict[str, Any]]:
    """Take one step of a parameter that is alone in its group. Nothing is changed in place.

    Args:
        algorithm: the rule.
        hypers: the value of every hyperparameter, by name.
        param, grad: tensors of the same shape; converted to float64.
        state: the states by checkpoint key, as the previous call returned them; {} at first.
        scalar_dtype: the dtype of scalar states that declare none (torch uses float32, or float64
            if that is the default dtype).
        storage_dtype: the dtype in which the parameter is stored, and states that declare no dtype.
            The step ends by rounding to it, and the ops `rounded` and `machine_eps` use it. If
            None, nothing is rounded at the end, and the two ops use the dtype of `param`.
        index: the parameter's number in the optimizer, for states that begin with it.

    Returns:
        The new parameter (float64), and the new states by key, with "step" if the rule has a step
        count.
    """
    member = Member(hypers, param, grad, state, scalar_dtype, storage_dtype, index)
    (result,) = evaluate_together(algorithm, [member])
    return result


@dataclass(frozen=True)
class Member:
    """One parameter of a step, with the arguments of `evaluate`.

    `index` is its number in the optimizer, and `group` the number of its group. Members of one
    group have equal states of the group, and all members have equal states of all groups.
    """

    hypers: Mapping[str, Any]
    param: Tensor
    grad: Tensor
    state: Mapping[str, Any]
    scalar_dtype: torch.dtype = torch.float32
    storage_dtype: torch.dtype | None = None
    index: int = 0
    group: int = 0


def evaluate_together(
    algorithm: Algorithm, members: Sequence[Member]
) -> list[tuple[Tensor, dict[str, Any]]]:
    """Take one step of several parameters; return for each what `evaluate` returns."""
    steps = [_step_of(algorithm, member) for member in members]
    results: dict[int, tuple[Tensor, dict[str, Any]]] = {}
    # All three dicts have the indices of members as keys.
    waiting: dict[int, tuple[str, Tensor]] = {}  # the reductions at which steps wait
    answers: dict[int, Tensor | None] = dict.fromkeys(range(len(steps)))
    while answers:
        for index, answer in answers.items():
            try:
                waiting[index] = steps[index].send(answer)
            except StopIteration as end:
                results[index] = end.value
        answers = _results_of_reductions(waiting, members)
        waiting = {index: call for index, call in waiting.items() if index not in answers}
    return [results[index] for index in range(len(steps))]


def _results_of_reductions(
    waiting: Mapping[int, tuple[str, Tensor]], members: Sequence[Member]
) -> dict[int, Tensor | None]:
    """Return the results of the reductions over groups, by the index of the member.

    If no step waits at a reduction over a group, return those of the reductions over all groups.
    """
    at_group_reductions = [index for index, (op, _) in waiting.items() if op.startswith("group_")]
    indices_by_group: dict[int, list[int]] = {}
    for index in at_group_reductions or waiting:
        group = members[index].group if at_group_reductions else 0
        indices_by_group.setdefault(group, []).append(index)
    answers: dict[int, Tensor | None] = {}
    for indices in indices_by_group.values():
        op, _ = waiting[indices[0]]
        result = MEANINGS[op](*(waiting[index][1] for index in indices))
        answers |= dict.fromkeys(indices, result)
    return answers


def _step_of(
    algorithm: Algorithm, member: Member
) -> Generator[tuple[str, Tensor], Tensor | None, tuple[Tensor, dict[str, Any]]]:
    """Take the step of one parameter, and return what `evaluate` returns.

    Yield each reduction over several parameters, as its op and this parameter's operand. The
    caller sends the result.
    """
    hypers, param, grad, state = member.hypers, member.param, member.grad, member.state
    scalar_dtype, storage_dtype = member.scalar_dtype, member.storage_dtype
    properties = properties_of(param, storage_dtype)
    values: Values = {
        algorithm.param: param.detach().double(),
        algorithm.grad: grad.detach().double(),
    }
    values |= {name: as_scalar_tensor(value) for name, value in hypers.items()}
    existing_states = [s for s in algorithm.states if exists(s, {**hypers, **properties})]
    for s in existing_states:
        old = state.get(s.key)
        value = (
            initial_value(algorithm, s, values, scalar_dtype, member.index) if old is None else old
        )
        values[s.symbol] = value if s.shape == "scalar" else value.double()
    fresh = {s.symbol for s in existing_states if state.get(s.key) is None}
    step = float(state.get("step", 0.0)) + 1.0
    if algorithm.step:
        values[algorithm.step] = as_scalar_tensor(step)
    yield from _StepEvaluator(algorithm, values, fresh, properties, scalar_dtype).run(
        algorithm.rule
    )
    new_state = {s.key: stored_value(s, values[s.symbol], storage_dtype) for s in existing_states}
    new_param = values[algorithm.param]
    new_param = new_param if storage_dtype is None else new_param.to(storage_dtype).double()
    return new_param, ({"step": step} if algorithm.step else {}) | new_state


def properties_of(
    param: Tensor, storage_dtype: torch.dtype | None = None
) -> dict[str, bool | float]:
    """Return the properties of a parameter, by op. A size that the parameter lacks is 1."""
    sizes = (1, 1, *param.shape)
    return {
        **{fact: holds(param.shape) for fact, holds in FACTS.items()},
        "ndim": param.ndim,
        "numel": param.numel(),
        "rows": sizes[-2],
        "cols": sizes[-1],
        "machine_eps": torch.finfo(storage_dtype or param.dtype).eps,
    }


@dataclass
class _StepEvaluator:
    """Run the statements of one step of one parameter.

    `values` holds every name's value so far, and `fresh` the states that begin in this step.
    """

    algorithm: Algorithm
    values: Values
    fresh: set[str]
    properties: Mapping[str, bool | float]
    scalar_dtype: torch.dtype

    def __post_init__(self) -> None:
        self.kinds: dict[str, Kind] = declared_kinds(self.algorithm)

    def run(self, program: Program) -> Generator[tuple[str, Tensor], Tensor | None, None]:
        for stmt in program:
            match stmt:
                case Assign(target, Call(op, (operand,)) as value) if op in WIDE_OPS:
                    self.values[target.name] = yield op, self.value(operand)
                    self.kinds[target.name] = self.kind(value)
                case Assign(target, value):
                    self.values[target.name] = self.assigned_value(stmt)
                    self.kinds[target.name] = self.kind(value)
                case If(condition, then, orelse):
                    yield from self.run(then if bool(self.value(condition)) else orelse)

    def assigned_value(self, stmt: Assign) -> Any:
        """Return the assigned value. A scalar state is computed and rounded in its own dtype."""
        state = self.algorithm.state(stmt.target.name)
        if state is None or state.shape != "scalar":
            return self.value(stmt.value)
        return self.value(stmt.value, target=state).to(dtype_of(state, self.scalar_dtype))

    def value(self, expr: Expr, target: State | None = None) -> Any:
        """Return the value of an expression.

        `target` is the scalar state being assigned. Operations that read it use its dtype.
        """
        match expr:
            case Const(value):
                return as_scalar_tensor(value)
            case Ref(name):
                return _as_dtype(torch.float64, self.values[name])
            case Call("fresh", (Ref(name),)):
                return torch.tensor(name in self.fresh)
            case Call(op, _) if op in self.properties:
                return as_scalar_tensor(self.properties[op])
            case Call(op, args) if op in RANDOM_OPS:
                elements = positions(self.values[self.algorithm.param])
                return MEANINGS[op](elements, *map(self.value, args))
            case Call("inverse_root" as op, args):
                return MEANINGS[op](*map(self.value, args), self.matrix_eps())
            case Call("item", (tuple_expr, Const(int() as index))):
                return self.value(tuple_expr)[index]
            case Call("truth" | "is_none" as op, (a,)):
                value = self.value(a, target)
                if op == "truth" and value is not None:
                    return value != 0
                return torch.tensor(op == "is_none" and value is None)
            case Call("and" | "or" as op, (a, b)):
                left = self.value(a, target)
                left_decides = left.ndim == 0 and bool(left) is (op == "or")
                right = self.neutral_operand(op, b) if left_decides else self.value(b, target)
                return MEANINGS[op](left, right)
            case Call("==" | "!=" as op, (a, b)) if _is_choice(self.values, a, b):
                return torch.tensor(MEANINGS[op](*(self.value(e) for e in (a, b))))
            case Call(op, args):
                operands = [self.value(a, target) for a in args]
                if target is not None and any(r.name == target.symbol for r in refs(expr)):
                    # torch computes with a 0-dim tensor, and with results of it, in its dtype.
                    dtype = dtype_of(target, self.scalar_dtype)
                    result = MEANINGS[op](*(_as_dtype(dtype, o) for o in operands))
                    return _as_dtype(torch.float64, result)
                return MEANINGS[op](*operands)
            case Linear():
                raise TypeError(
                    "a linear form belongs to a plan, but the evaluator runs algorithms"
                )

    def matrix_eps(self) -> float:
        """Return the machine epsilon of the dtype in which lowerings decompose matrices."""
        return min(self.properties["machine_eps"], torch.finfo(torch.float32).eps)

    def neutral_operand(self, op: str, expr: Expr) -> Tensor:
        """Return the neutral operand of and/or, in the shape of the operand that is skipped."""
        param: Tensor = self.values[self.algorithm.param]
        shape = shape_of(self.kind(expr).axes, param, self.values.get(RANK))
        return torch.full(shape, op == "and", device=param.device)

    def kind(self, expr: Expr) -> Kind:
        """Return the kind of an expression at the current statement."""
        return kind_of(expr, lambda ref: self.kinds[ref.name])


def _as_dtype(dtype: torch.dtype, value: Any) -> Any:
    """Convert floating-point values to a dtype; return bools, choices and tuples unchanged."""
    is_floating = getattr(value, "is_floating_point", None)  # objects that act as tensors have it
    return value.to(dtype) if is_floating and is_floating() else value


def _is_choice(values: Values, *operands: Expr) -> bool:
    """Tell whether one of the operands is a string or None, not a number."""
    return any(
        isinstance(e, Const | Ref)
        and isinstance(e.value if isinstance(e, Const) else values[e.name], str | None)
        for e in operands
    )


Values = dict[str, Any]


def as_scalar_tensor(value: Any) -> Any:
    """Convert numbers and bools, also those in a tuple, to 0-dim tensors; keep None and strings."""
    if isinstance(value, tuple | list):
        return tuple(as_scalar_tensor(v) for v in value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.as_tensor(value, dtype=torch.float64).detach().squeeze()


def exists(state: State, condition_values: Mapping[str, Any]) -> bool:
    """Tell whether a state exists, given the values of hyperparameters and properties."""
    condition = state.condition
    if condition is not None and condition.limit:
        sizes = (condition_values["rows"], condition_values["cols"])
        shape = sizes if condition_values["factored"] else ()
        return fact_holds(condition.name, shape, condition_values) is condition.holds
    return condition is None or bool(condition_values[condition.name]) is condition.holds


def initial_value(
    algorithm: Algorithm, state: State, values: Values, scalar_dtype: torch.dtype, index: int
) -> Tensor:
    """Return the value of a state before a parameter's first step."""
    if state.init == "index":
        return torch.tensor(float(index), dtype=dtype_of(state, scalar_dtype))
    name = algorithm.param if state.init == "p" else state.init
    initial: Tensor = values[name] if isinstance(name, str) else as_scalar_tensor(name)
    if state.shape == "scalar":
        return initial.to(dtype_of(state, scalar_dtype))
    axes = declared_kinds(algorithm)[state.symbol].axes
    shape = shape_of(axes, values[algorithm.param], values.get(RANK))
    return stored_value(
        state, torch.zeros(shape, dtype=torch.float64, device=initial.device) + initial
    )


def dtype_of(scalar: State, default: torch.dtype) -> torch.dtype:
    """Return the dtype that a scalar state declares, or the default if it declares none."""
    dtype: torch.dtype = getattr(torch, scalar.dtype) if scalar.dtype else default
    return dtype


def stored_value(state: State, value: Tensor, storage_dtype: torch.dtype | None = None) -> Tensor:
    """Return the value of a state as the optimizer keeps it.

    The value is rounded to the dtype that the state declares. If it declares none, the value is
    rounded to `storage_dtype`, the parameter's, unless this is None or the state is "scalar".
    """
    if state.is_quantized:
        return quantized(value, state.block, state.map, state.min_elements)
    if state.dtype == AT_LEAST_FLOAT32 and storage_dtype is not None:
        storage_dtype = torch.promote_types(storage_dtype, torch.float32)
    elif state.dtype and state.dtype != AT_LEAST_FLOAT32:
        return value.to(getattr(torch, state.dtype))
    if storage_dtype is None or state.shape == "scalar":
        return value
    return value.to(storage_dtype).double()


def shape_of(axes: Axes, param: Tensor, rank: Any) -> torch.Size:
    """Return the shape of a value that varies along these axes of a parameter.

    `rank` is the value of the name `rank` in the rule. It is used only if an axis has this size.
    """
    if axes is Axes.NONE:
        return torch.Size()
    *batch, rows, cols = (1, 1, *param.shape)
    size_by_name = {"rows": rows, "cols": cols, "1": 1}
    names = height(axes), width(axes)
    if RANK in names:
        size_by_name[RANK] = min(int(rank), rows, cols)
    sizes = [*batch, *(size_by_name[name] for name in names)]
    return torch.Size(sizes[len(sizes) - param.ndim :])
