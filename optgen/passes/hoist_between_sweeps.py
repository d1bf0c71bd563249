"""Hoist small values out of each sweep into the `Finish` before it.

Small values are rows, columns, numbers of matrices, and numbers that depend on a reduction. Each is
computed once per parameter and gets a name. `hoist_between_sweeps` is a part of planning. After it,
a coefficient that depends on a reduction is a name or its negation, and each term has at most one
row factor and one column factor. `invert_factors` is for kernels only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from optgen.ir.kinds import Axes, Kind, Stage, kind_of
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
    expressions,
    map_values,
    rebuild,
    walk,
)
from optgen.ir.plan import Finish, MatrixCall, Phase, Plan, Sweep, reads
from optgen.ir.reserved_in_python import free_name
from optgen.passes.descriptive_names import LINE_FACTORS, POWERS, reduced_coefficient
from optgen.passes.extract_subexpressions import ends_phase
from optgen.passes.linear_forms import ONE, add, divide, multiply, negate, split_sign
from optgen.passes.ranges import Range, is_not_negative, proven_ranges, range_of

Arms = tuple[tuple[Expr, bool], ...]
"""Branches around a statement, outermost first: each condition, and whether the arm is `then`."""


def hoist_between_sweeps(plan: Plan) -> Plan:
    """Return the plan with every small value of a sweep computed by the `Finish` before it."""
    kinds = dict(plan.kinds)
    known: dict[tuple[Expr, Arms], Ref] = {}
    phases: list[Phase] = []
    for phase in plan.phases:
        if not isinstance(phase, Sweep):
            phases.append(phase)
            if isinstance(phase, MatrixCall):
                known.clear()  # no small value is kept across a matrix op
            continue
        hoister = _Hoister(kinds, known)
        body = hoister.program(phase.body, ())
        _append_to_finish(phases, _in_common_branches(hoister.hoisted))
        read = {ref.name for expr in expressions(body) for ref in reads(expr)}
        needed = tuple(s for s in phase.streams if s.stored or s.name in read)
        phases.append(Sweep(needed, body) if plan.is_cut else phase)
    return replace(plan, phases=tuple(phases), kinds=kinds)


def _in_common_branches(statements: Iterable[Stmt]) -> Program:
    """Return statements in which adjacent branches on one condition are one branch.

    The statements assign new names, so no arm changes the condition.
    """
    out: list[Stmt] = []
    for stmt in statements:
        last = out[-1] if out else None
        if isinstance(stmt, If) and isinstance(last, If) and last.condition == stmt.condition:
            then = _in_common_branches((*last.then, *stmt.then))
            out[-1] = replace(
                last, then=then, orelse=_in_common_branches((*last.orelse, *stmt.orelse))
            )
        else:
            out.append(stmt)
    return tuple(out)


def _append_to_finish(phases: list[Phase], statements: Sequence[Stmt]) -> None:
    """Append statements to the last phase if it is a `Finish`, or else to a new one."""
    if statements:
        finish = phases.pop() if phases and isinstance(phases[-1], Finish) else Finish(())
        assert isinstance(finish, Finish)
        phases.append(Finish((*finish.body, *statements)))


@dataclass
class _Hoister:
    """Hoister of one sweep's small values. A hoisted statement keeps the branches around it.

    `known` holds the names of the values that are already hoisted.
    """

    kinds: dict[Ref, Kind]
    known: dict[tuple[Expr, Arms], Ref]
    hoisted: list[Stmt] = field(default_factory=list)  # statements for the `Finish` before

    def program(self, body: Program, arms: Arms) -> Program:
        new_body: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, If):
                then = self.program(stmt.then, (*arms, (stmt.condition, True)))
                orelse = self.program(stmt.orelse, (*arms, (stmt.condition, False)))
                new_body.append(replace(stmt, then=then, orelse=orelse))
            else:
                new_body.append(replace(stmt, value=self._value(stmt, arms)))
        return tuple(new_body)

    def _value(self, stmt: Assign, arms: Arms) -> Expr:
        """Return the value of a statement with a name for each small value in it."""
        target = stmt.target.name

        def with_name(expr: Expr, name: str) -> Expr:
            is_negative, unsigned = split_sign(expr)
            if isinstance(unsigned, Const | Ref):
                return expr
            ref = self._name(unsigned, name, stmt, arms)
            return negate(ref) if is_negative else ref

        def inner(expr: Expr) -> Expr:
            if self._is_small(expr) and self._is_device_value(expr):
                return with_name(expr, f"{target}_bound")
            if isinstance(expr, Linear):
                return replace(expr, terms=tuple(term(t, outermost=False) for t in expr.terms))
            return rebuild(expr, inner)

        def term(t: Term, outermost: bool) -> Term:
            coefficient = t.coefficient
            if self._is_device_value(coefficient):
                name = reduced_coefficient(target, t.factors) if outermost else f"{target}_scale"
                coefficient = with_name(coefficient, name)
            factors, divisors = self._with_merged_lines(t, with_name)
            return Term(coefficient, tuple(map(inner, factors)), tuple(map(inner, divisors)))

        if isinstance(stmt.value, Linear):
            return replace(
                stmt.value, terms=tuple(term(t, outermost=True) for t in stmt.value.terms)
            )
        return rebuild(stmt.value, inner) if ends_phase(stmt.value) else inner(stmt.value)

    def _with_merged_lines(
        self, term: Term, with_name: Callable[[Expr, str], Expr]
    ) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """Return a term's factors and divisors, with its rows and its columns merged."""
        merged: dict[str, list[tuple[Expr, bool]]] = {}
        for expr, multiplies in _factors_and_divisors(term):
            if self._is_small(expr):
                name = LINE_FACTORS[self._kind(expr).axes]
                merged.setdefault(name, []).append((expr, multiplies))
        matrix_factors = merged.pop("matrix_factor", [])
        if matrix_factors:  # merged into the row or column factor, if there is one
            name = next((n for n in ("row_factor", "col_factor") if n in merged), "matrix_factor")
            merged[name] = [*merged.get(name, []), *matrix_factors]
        factors = [e for e in term.factors if not self._is_small(e)]
        for name in sorted(merged, reverse=True):
            factors.append(with_name(_product(merged[name]), name))
        return tuple(factors), tuple(e for e in term.divisors if not self._is_small(e))

    def _is_small(self, expr: Expr) -> bool:
        """Tell whether a value has no element for each element of the parameter."""
        return self._kind(expr).axes is not Axes.TENSOR

    def _is_device_value(self, expr: Expr) -> bool:
        """Tell whether a value depends on a reduction or on a row, column or tensor."""
        return self._kind(expr).stage is Stage.DEVICE

    def _kind(self, expr: Expr) -> Kind:
        return kind_of(expr, self.kinds.__getitem__)

    def _name(self, expr: Expr, wanted_name: str, stmt: Assign, arms: Arms) -> Ref:
        expr = as_plain_arithmetic(expr)
        if (expr, arms) in self.known:
            return self.known[expr, arms]
        ref = Ref(free_name(wanted_name, {ref.name for ref in self.kinds}))
        self.kinds[ref] = self._kind(expr)
        self.known[expr, arms] = ref
        self.hoisted.append(inside_arms(arms, Assign(ref, expr, stmt.quote)))
        return ref


def as_plain_arithmetic(expr: Expr) -> Expr:
    """Return an expression with its linear forms written as plain arithmetic."""
    if not isinstance(expr, Linear):
        return rebuild(expr, as_plain_arithmetic)
    total: Expr = Const(0)
    for term in expr.terms:
        parts = ((term.coefficient, True), *_factors_and_divisors(term))
        total = add(
            total, _product((as_plain_arithmetic(e), multiplies) for e, multiplies in parts)
        )
    return total


def _factors_and_divisors(term: Term) -> Iterator[tuple[Expr, bool]]:
    """Yield each factor and divisor of a term, and whether it multiplies."""
    yield from ((factor, True) for factor in term.factors)
    yield from ((divisor, False) for divisor in term.divisors)


def _product(parts: Iterable[tuple[Expr, bool]]) -> Expr:
    """Return a product of factors and divisors as plain arithmetic."""
    product: Expr = ONE
    for expr, multiplies in parts:
        product = (multiply if multiplies else divide)(product, expr)
    return product


def inside_arms(arms: Arms, stmt: Assign) -> Stmt:
    """Return a statement inside the branches that lead to it."""
    nested: Stmt = stmt
    for condition, is_then in reversed(arms):
        nested = If(condition, (nested,), ()) if is_then else If(condition, (), (nested,))
    return nested


_INVERSE = Fraction(-1)


def invert_factors(plan: Plan) -> Plan:
    """Return the plan whose sweeps multiply by inverses of rows and columns.

    `g / sqrt(maximum(row * column, bound))` becomes `g * minimum(row' * column', bound')`, where
    the primed values are inverse roots. A sweep then multiplies, and the `Finish` before it
    computes one root and one division per row and per column instead of one per element. The
    divisor must consist of rows, columns and numbers. It must be provably nonnegative: only then is
    the root of a product the product of the roots, and only then do inverses swap `maximum` and
    `minimum`. The inverse of a zero is inf, and `minimum` with the inverted bound replaces it, as
    `maximum` replaced the zero.
    """
    inverter = _Inverter(plan)
    phases: list[Phase] = []
    for phase in plan.phases:
        if isinstance(phase, Finish):
            inverter.learn(phase.body)
        if isinstance(phase, Sweep):
            phase = replace(phase, body=inverter.with_inverses(phase.body))
            _append_to_finish(phases, inverter.hoisted)
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
                factors = (*term.factors, *_factors_of(self._power(divisor, _INVERSE)))
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
                return Linear((Term(scale, tuple(f for p in powers for f in _factors_of(p)), ()),))
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
            wanted = f"{ref.name}_{POWERS.get(power, 'power')}"
            name = Ref(free_name(wanted, {other.name for other in self.kinds}))
            self.kinds[name] = self.kinds[ref]
            self.power_names[ref, power] = name
            self.hoisted.append(Assign(name, _plain_power(ref, power), self.quote))
        return self.power_names[ref, power]

    def _kind(self, expr: Expr) -> Kind:
        return kind_of(expr, self.kinds.__getitem__)


def _factors_of(expr: Expr) -> Iterator[Expr]:
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
