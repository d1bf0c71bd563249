"""Hoist divisions and roots of row and column factors out of sweeps.

`g / sqrt(maximum(row * column, bound))` becomes `g * minimum(row' * column', bound')`, where the
primed values are inverse roots. A sweep then multiplies, and the `Finish` before it computes one
root and one division per row and per column instead of one per element. The divisor must consist of
rows, columns and numbers. It must be provably nonnegative: only then is the root of a product the
product of the roots, and only then do inverses swap `maximum` and `minimum`. The inverse of a zero
is inf, and `minimum` with the inverted bound replaces it, as `maximum` replaced the zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from optgen.ir.generated_names import free_name
from optgen.ir.kinds import Axes, Kind, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Linear,
    Program,
    Ref,
    Stmt,
    Term,
    assigns,
    map_values,
    rebuild,
    walk,
)
from optgen.ir.plan import Finish, Phase, Plan, Sweep
from optgen.passes.linear import ONE
from optgen.passes.ranges import Range, is_not_negative, proven_ranges, range_of

_POWER_NAMES = {Fraction(1, 2): "sqrt", Fraction(-1, 2): "rsqrt", Fraction(-1): "inverse"}
_INVERSE = Fraction(-1)


def invert_factors(plan: Plan) -> Plan:
    """Return the plan whose sweeps multiply by inverses of rows and columns."""
    inverter = _Inverter(plan)
    phases: list[Phase] = []
    for phase in plan.phases:
        if isinstance(phase, Finish):
            inverter.learn(phase.body)
        if isinstance(phase, Sweep):
            phase = replace(phase, body=inverter.with_inverses(phase.body))
            if inverter.hoisted:
                before = phases.pop() if phases and isinstance(phases[-1], Finish) else Finish(())
                assert isinstance(before, Finish)
                phases.append(Finish((*before.body, *inverter.hoisted)))
                inverter.hoisted.clear()
        phases.append(phase)
    return replace(plan, phases=tuple(phases), kinds=inverter.kinds)


@dataclass
class _Inverter:
    """Inverter of the row and column divisors of a plan's sweeps.

    `power_names` names the powers that a `Finish` already computes. The `Finish` before the sweep
    gains the statements in `hoisted`.
    """

    plan: Plan
    kinds: dict[Ref, Kind] = field(default_factory=dict)
    power_names: dict[tuple[Ref, Fraction], Ref] = field(default_factory=dict)
    hoisted: list[Assign] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kinds |= self.plan.kinds
        self.ranges: dict[Ref, Range] = dict(proven_ranges(self.plan.algorithm))
        self.assigned_in_branches: set[Ref] = set()  # names without a known range
        self.quote: tuple[str, ...] = ()

    def learn(self, body: Program) -> None:
        """Record the ranges of a `Finish`'s values, and which of its names a branch assigns."""
        for stmt in body:
            if isinstance(stmt, If):
                self.assigned_in_branches |= {a.target for a in assigns((stmt,))}
            else:
                self.ranges.setdefault(stmt.target, range_of(stmt.value, self.ranges))

    def with_inverses(self, body: Program) -> Program:
        """Return the body of a sweep with its row and column divisors inverted."""

        def inverted(expr: Expr) -> Expr:
            expr = rebuild(expr, inverted)
            if isinstance(expr, Linear):
                return replace(expr, terms=tuple(map(self._inverted, expr.terms)))
            return expr

        out: list[Stmt] = []
        for stmt in body:
            self.quote = next((a.quote for a in assigns((stmt,))), ())
            out += map_values((stmt,), inverted)
        return tuple(out)

    def _inverted(self, term: Term) -> Term:
        for divisor in term.divisors:
            if self._is_of_rows_and_columns(divisor) and self._can_be_inverted(divisor):
                rest = tuple(d for d in term.divisors if d is not divisor)
                factors = (*term.factors, *_factors(self._power(divisor, _INVERSE)))
                return self._inverted(replace(term, factors=factors, divisors=rest))
        return term

    def _is_of_rows_and_columns(self, expr: Expr) -> bool:
        axes = {self._kind(node).axes for node in walk(expr) if isinstance(node, Ref)}
        return Axes.TENSOR not in axes and not axes.isdisjoint({Axes.ROW, Axes.COLUMN})

    def _can_be_inverted(self, expr: Expr) -> bool:
        """Tell whether an expression has only roots, products and bounds of nonnegative values."""
        if not is_not_negative(expr, self.ranges):
            return False
        if self._kind(expr).is_scalar:
            return True
        match expr:
            case Ref():
                return expr not in self.assigned_in_branches
            case Call("sqrt" | "maximum" | "minimum", args):
                return all(map(self._can_be_inverted, args))
            case Linear((Term(coefficient, factors, divisors),)):
                return all(map(self._can_be_inverted, (coefficient, *factors, *divisors)))
        return False

    def _power(self, expr: Expr, power: Fraction) -> Expr:
        """Return a power of an expression, as a product of powers of its rows and columns."""
        if self._kind(expr).is_scalar:
            return self._scalar_power(expr, power)
        match expr:
            case Ref():
                return self._name_of_power(expr, power)
            case Call("sqrt", (a,)):
                return self._power(a, power / 2)
            case Call("maximum" | "minimum" as word, (a, b)):
                opposite = {"maximum": "minimum", "minimum": "maximum"}
                sides = self._power(a, power), self._power(b, power)
                return Call(word if power > 0 else opposite[word], sides)
            case Linear((Term(coefficient, factors, divisors),)):
                powers = [self._power(f, power) for f in factors]
                powers += [self._power(d, -power) for d in divisors]
                scale = self._scalar_power(coefficient, power)
                return Linear((Term(scale, tuple(f for p in powers for f in _factors(p)), ()),))
        raise TypeError(f"not a product of rows and columns: {expr!r}")

    def _scalar_power(self, expr: Expr, power: Fraction) -> Expr:
        """Return a power of a scalar as plain arithmetic, which the scalar program can compute."""
        match expr:
            case Const(1):
                return expr
            case Call("**", (a, Const(2))) if is_not_negative(a, self.ranges):
                return _plain_power(a, 2 * power)
        return _plain_power(expr, power)

    def _name_of_power(self, ref: Ref, power: Fraction) -> Ref:
        """Return the name of a row's or a column's power; the `Finish` before computes it."""
        if power == 1:
            return ref
        if (ref, power) not in self.power_names:
            wanted = f"{ref.name}_{_POWER_NAMES.get(power, 'power')}"
            name = Ref(free_name(wanted, {other.name for other in self.kinds}))
            self.kinds[name] = self.kinds[ref]
            self.power_names[ref, power] = name
            self.hoisted.append(Assign(name, _plain_power(ref, power), self.quote))
        return self.power_names[ref, power]

    def _kind(self, expr: Expr) -> Kind:
        return kind_of(expr, self.kinds.__getitem__)


def _factors(expr: Expr) -> Iterator[Expr]:
    """Yield the factors of a product; of any other expression, the expression itself."""
    match expr:
        case Linear((Term(Const(1), factors, ()),)):
            yield from factors
        case _:
            yield expr


def _plain_power(expr: Expr, power: Fraction) -> Expr:
    if abs(power) == Fraction(1, 2):
        expr = Call("sqrt", (expr,))
    elif abs(power) != 1:
        expr = Call("**", (expr, Const(float(abs(power)))))
    return expr if power > 0 else Call("/", (ONE, expr))
