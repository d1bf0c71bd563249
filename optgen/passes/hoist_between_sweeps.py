"""Hoist small values out of each sweep into the `Finish` before it.

Small values are rows, columns, numbers of matrices, and numbers that depend on a reduction. Each is
computed once per parameter and gets a name. After this pass a coefficient that depends on a
reduction is a name or its negation, and each term has at most one row factor and one column factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from optgen.ir.generated_names import free_name
from optgen.ir.kinds import Axes, Kind, Stage, kind_of
from optgen.ir.nodes import (
    Assign,
    Const,
    Expr,
    If,
    Linear,
    Program,
    Ref,
    Stmt,
    Term,
    expressions,
    rebuild,
)
from optgen.ir.plan import Finish, MatrixCall, Phase, Plan, Stream, Sweep, reads
from optgen.passes.linear import ONE, add, divide, multiply, negate, split_sign
from optgen.passes.name_reductions import ends_phase

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
        if hoister.hoisted:
            finish = phases.pop() if phases and isinstance(phases[-1], Finish) else Finish(())
            assert isinstance(finish, Finish)
            phases.append(Finish((*finish.body, *hoister.hoisted)))
        phases.append(Sweep(_needed_streams(phase, body), body) if plan.is_cut else phase)
    return replace(plan, phases=tuple(phases), kinds=kinds)


def _needed_streams(sweep: Sweep, body: Program) -> tuple[Stream, ...]:
    """Return the streams that a sweep still stores or reads after hoisting."""
    read = {ref.name for expr in expressions(body) for ref in reads(expr)}
    return tuple(s for s in sweep.streams if s.stored or s.name in read)


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
                name = _coefficient_name(target, t.factors) if outermost else f"{target}_scale"
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
                name = _FACTOR_NAMES[self._kind(expr).axes]
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


def _coefficient_name(target: str, factors: tuple[Expr, ...]) -> str:
    """Return a name for the coefficient of a term of the target's new value."""
    if target != "param":
        return f"{target}_scale"
    is_of_param = any(isinstance(factor, Ref) and factor.name == target for factor in factors)
    return "decay_factor" if is_of_param else "step_size"


_FACTOR_NAMES = {Axes.ROW: "row_factor", Axes.COLUMN: "col_factor", Axes.MATRIX: "matrix_factor"}


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
