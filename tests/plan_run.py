"""Run a plan without a lowering: the scalar program, then every phase, as printed code does.

Names are variables, versions are ignored, and the parameter and its states are changed in place. A
plain copy to a local is another name for the same tensor. Printed code may do all this, so this
runner does it. When a sweep ends, the runner forgets the locals that the sweep assigned, except
reductions and locals that the sweep stores.
"""

from __future__ import annotations

from typing import Any

import torch

from optgen.ir.evaluate import dtype_of, properties_of
from optgen.ir.meanings import MEANINGS
from optgen.ir.nodes import Assign, Call, Const, Expr, Linear, Program, Ref
from optgen.ir.ops import RANDOM_OPS
from optgen.ir.plan import Finish, MatrixCall, Phase, Plan, Sweep
from optgen.ir.random_numbers import positions

Values = dict[str, Any]


def run_plan(
    plan: Plan,
    hypers: Values,
    param: torch.Tensor,
    grad: torch.Tensor,
    state: Values,
    scalar_dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, Values]:
    """Take one step; the arguments and results are those of `optgen.ir.evaluate.evaluate`."""
    return _Run(plan, hypers, param, grad, state, scalar_dtype).step()


class _Run:
    def __init__(
        self, plan: Plan, hypers: Values, p: Any, g: Any, state: Values, scalar_dtype: Any
    ):
        self.plan, self.scalar_dtype = plan, scalar_dtype
        self.algorithm = algorithm = plan.algorithm
        self.values: Values = {"maximize": torch.tensor(False)}
        self.values |= {name: number(value) for name, value in hypers.items()}
        self.values |= {algorithm.param: p.double().clone(), algorithm.grad: g.double().clone()}
        self.t = state.get("step", 0.0) + 1.0
        if algorithm.step:
            self.values[algorithm.step] = number(self.t)
        self.states = [s for s in algorithm.states if self.exists(s.when)]
        self.fresh = {s.symbol for s in self.states if s.key not in state}
        for s in self.states:
            old = state[s.key].clone() if s.key in state else self.initial_value(s)
            self.values[s.symbol] = old if s.shape == "scalar" else old.double()
        self.stored: set[str] = set()
        self.properties = properties_of(p)
        self.scalar_states = {s.symbol for s in algorithm.scalar_states()}

    def exists(self, when: str | None) -> bool:
        """Tell whether a state with the condition `when`, such as "not amsgrad", exists."""
        name = (when or "").removeprefix("not ")
        if name not in self.values:
            return True
        is_true, is_negated = bool(self.values[name] != 0), when != name
        return is_true != is_negated

    def initial_value(self, state: Any) -> torch.Tensor:
        if state.init == "index":
            return torch.zeros((), dtype=dtype_of(state, self.scalar_dtype))
        name = self.algorithm.param if state.init == "p" else state.init
        start = self.values[name] if isinstance(name, str) else number(name)
        if state.shape == "scalar":
            return start.to(dtype_of(state, self.scalar_dtype))
        shape = list(self.values[self.algorithm.param].shape)
        if state.shape in ("row", "col"):
            shape[-1 if state.shape == "row" else -2] = 1
        return torch.zeros(shape, dtype=torch.float64) + start

    def step(self) -> tuple[torch.Tensor, Values]:
        self.run(self.plan.scalars)
        for phase in self.plan.phases:
            self.run_phase(phase)
        new = {s.key: self.values[s.symbol] for s in self.states}
        return self.values[self.algorithm.param], (
            {"step": self.t} if self.algorithm.step else {}
        ) | new

    def run_phase(self, phase: Phase) -> None:
        match phase:
            case Sweep(streams, body):
                self.stored = {s.name for s in streams if s.stored and s.role != "local"}
                lasting = self.stored | {s.name for s in streams if s.role == "local"}
                lasting |= {a.target.name for a in phase.reductions}
                before = dict(self.values)
                self.run(body)
                self.values = before | {n: v for n, v in self.values.items() if n in lasting}
            case Finish(body):
                self.stored = set()
                self.run(body)
            case MatrixCall(target, op, args):
                self.values[target.name] = self.value(Call(op, args))

    def run(self, program: Program) -> None:
        for stmt in program:
            if isinstance(stmt, Assign):
                self.assign(stmt)
            elif bool(self.value(stmt.condition)):
                self.run(stmt.then)
            else:
                self.run(stmt.orelse)

    def dtype_of(self, scalar_state: str) -> torch.dtype:
        state = self.algorithm.state(scalar_state)
        assert state is not None
        return dtype_of(state, self.scalar_dtype)

    def assign(self, stmt: Assign) -> None:
        name = stmt.target.name
        if name in self.scalar_states:
            self.values[name] = self.value(stmt.value, name).to(self.dtype_of(name))
        elif name in self.stored:
            self.values[name].copy_(self.value(stmt.value))
        else:
            self.values[name] = self.value(stmt.value)

    def value(self, expr: Expr, scalar_state: str = "") -> Any:
        """Return a value; ops that read `scalar_state` compute in the dtype of this state."""
        match expr:
            case Const(value):
                return number(value)
            case Ref(name):
                value = self.values[name]
                return value if not torch.is_tensor(value) or value.ndim else as_double(value)
            case Linear(terms):
                return self.linear(terms)
            case Call("fresh", (Ref(name),)):
                return torch.tensor(name in self.fresh)
            case Call("is_none", (operand,)):
                return torch.tensor(self.value(operand) is None)
            case Call(op, _) if op in self.properties:
                return number(self.properties[op])
            case Call(op, args) if op in RANDOM_OPS:
                elements = positions(self.values[self.algorithm.param])
                return MEANINGS[op](elements, *map(self.value, args))
            case Call("item", (Ref(name), Const(index))):
                return self.values[name][index]
            case Call(op, args):
                operands = [self.value(a, scalar_state) for a in args]
                if any(isinstance(a, Ref) and a.name == scalar_state for a in args):
                    operands = [o.to(self.dtype_of(scalar_state)) for o in operands]
                    return MEANINGS[op](*operands).double()
                return MEANINGS[op](*operands)

    def linear(self, terms: Any) -> Any:
        """Return a sum of products. If it is one tensor alone, return this tensor, not a copy."""
        total = None
        for term in terms:
            factors = [self.value(f) for f in term.factors]
            if term.coefficient != Const(1) or not factors:
                factors.insert(0, self.value(term.coefficient))
            product = factors[0]
            for factor in factors[1:]:
                product = product * factor
            for divisor in term.divisors:
                product = product / self.value(divisor)
            total = product if total is None else total + product
        return total


def number(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(number(v) for v in value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | torch.Tensor):
        return as_double(torch.as_tensor(value))
    return torch.tensor(value, dtype=torch.float64)


def as_double(value: torch.Tensor) -> torch.Tensor:
    return value if value.dtype == torch.bool else value.double()
