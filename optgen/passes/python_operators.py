"""Replace scalar operators that behave otherwise in Python than on tensors and in kernels.

Division by zero gives infinity or NaN in C++, in Triton and in torch, but raises in Python. So
`a / b` becomes `divide(a, b)`, unless the bounds of the hyperparameters prove that `b` is above
zero. `**` and `%` become `power` and `remainder` in the same way. An operator that stays may raise
if a hyperparameter is later set outside of its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optgen.ir.nodes import Call, Const, Expr, Ref, map_expressions, map_values, rebuild
from optgen.ir.plan import Plan
from optgen.passes.inline_scalars import definitions, expand_definitions
from optgen.passes.ranges import Ranges, declared_ranges, is_not_negative, range_of, ranges_after

_FUNCTIONS = {"/": "divide", "**": "power", "%": "remainder"}


def use_ieee_operators(plan: Plan) -> Plan:
    """Return the plan with every unsafe scalar operator replaced by its IEEE function."""
    proof = _Proof(plan, definitions(plan))

    def replaced(expr: Expr) -> Expr:
        inner = rebuild(expr, replaced)
        match expr:
            case Call(word, (a, b)) if word in _FUNCTIONS and plan.kind(expr).is_scalar:
                if not proof.is_safe(word, a, b):
                    return _as_function_call(inner)
        return inner

    return plan.map_programs(lambda program: map_expressions(program, replaced))


@dataclass
class _Proof:
    """Proofs about the scalars of a plan: their ranges, and which of them are never zero."""

    plan: Plan
    definitions: dict[Ref, Expr]

    def __post_init__(self) -> None:
        self.bounds_by_hyper = {h.name: h.bounds for h in self.plan.algorithm.hypers}
        declared = declared_ranges(self.plan.algorithm)
        self.ranges: Ranges = ranges_after(self.plan.scalars, declared)

    def is_safe(self, word: str, a: Expr, b: Expr) -> bool:
        """Tell whether the Python operator gives the IEEE result within the bounds."""
        a, b = (expand_definitions(expr, self.definitions) for expr in (a, b))
        if word != "**":
            return self._is_above_zero(b) or (isinstance(b, Const) and b.value != 0)
        base, power = range_of(a, self.ranges), range_of(b, self.ranges)
        shrinks = 0 <= base.low and base.high <= 1 and power.low >= 0
        return shrinks or (base.low >= 1 and power.high <= 0)

    def _is_above_zero(self, expr: Expr) -> bool:
        """Tell whether a scalar is provably above zero."""
        # `*` and `/` have no case, because a product or a quotient may underflow to zero.
        match expr:
            case Ref(name) | Call("item", (Ref(name), _)) if name in self.bounds_by_hyper:
                bounds = self.bounds_by_hyper[name]
                return bounds.gt is not None and bounds.gt >= 0
            case Call("+", (a, b)):
                sides = ((a, b), (b, a))
                return any(self._is_above_zero(x) and self._is_not_negative(y) for x, y in sides)
            case Call("minimum", (a, b)):
                return self._is_above_zero(a) and self._is_above_zero(b)
            case Call("maximum", (a, b)):
                return self._is_above_zero(a) or self._is_above_zero(b)
            case Call("-", (Const(1), below)):
                return self._is_below_one(below)
            case Call("sqrt", (a,)):
                return self._is_above_zero(a)
            case Call("machine_eps", _):
                return True
        return range_of(expr, self.ranges).low > 0

    def _is_below_one(self, expr: Expr) -> bool:
        """Tell whether a scalar is provably below one."""
        match expr:
            case Ref(name) | Call("item", (Ref(name), _)) if name in self.bounds_by_hyper:
                bounds = self.bounds_by_hyper[name]
                return bounds.lt is not None and bounds.lt <= 1
            case Call("**", (a, b)):
                least_power = range_of(b, self.ranges).low
                return least_power >= 1 and self._is_not_negative(a) and self._is_below_one(a)
            case Call("*", (a, b)):
                ranges = [range_of(side, self.ranges) for side in (a, b)]
                are_in_unit_interval = all(0 <= each.low and each.high <= 1 for each in ranges)
                return are_in_unit_interval and (self._is_below_one(a) or self._is_below_one(b))
        return range_of(expr, self.ranges).high < 1

    def _is_not_negative(self, expr: Expr) -> bool:
        return is_not_negative(expr, self.ranges)


def _as_function_call(expr: Expr) -> Expr:
    """Return a quotient, a power or a remainder as a function call, and a square as a product."""
    assert isinstance(expr, Call)
    a, b = expr.args
    if expr.op == "**" and isinstance(a, Ref) and b == Const(2):
        return replace(expr, op="*", args=(a, a))
    return replace(expr, op=_FUNCTIONS[expr.op])


def truths_to_bool(plan: Plan) -> Plan:
    """Return the plan with the op `holds` in place of every `truth` inside a value.

    In a value, torch accepts neither None nor 3.0 as true or false. A Python `if` accepts both, so
    conditions of branches stay as they are.
    """
    return plan.map_programs(lambda program: map_values(program, _with_holds))


def _with_holds(expr: Expr) -> Expr:
    expr = rebuild(expr, _with_holds)
    match expr:
        case Call("truth", args):
            return Call("holds", args, expr.place)
    return expr
