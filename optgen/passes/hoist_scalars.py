"""Hoist scalar arithmetic out of sweeps into the scalar program, which runs once per parameter.

After this pass a coefficient is a number, a name of the scalar program, or the negation of such a
name. A number that a branch of a sweep needs is computed in the same branch of the scalar program,
because only the arm that runs may be evaluated. Plain sums and products can always be evaluated, so
they are computed outside of the branch.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from optgen.ir.kinds import Kind, kind_of
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
    rebuild,
    refs,
    refs_read,
    walk,
)
from optgen.ir.ops import OPS
from optgen.ir.plan import Phase, Plan, Sweep, is_reduction
from optgen.ir.reserved_in_python import is_free, numbered
from optgen.passes.descriptive_names import coefficient_names, inner_scalar_names, scalar_name
from optgen.passes.extract_subexpressions import is_item
from optgen.passes.linear_forms import negate, split_sign

_ALWAYS_DEFINED = ("+", "-", "*", "neg", "item")


def hoist_scalars(plan: Plan) -> Plan:
    """Return the plan whose scalar program computes and names the coefficients of its sweeps."""
    hoister = _Hoister(plan)
    scalars = plan.scalars
    phases: list[Phase] = []
    scope = _Scope()
    for phase in plan.phases:
        if isinstance(phase, Sweep):
            scalars, body = hoister.block(scalars, phase.body, scope)
            scope.added.clear()
            phase = replace(phase, body=body)
        phases.append(phase)
    for position, stmt in enumerate(hoister.outside_branches):
        scalars = _after_operands(stmt, scalars, hoister.outside_branches[:position])
    return replace(plan, scalars=scalars, phases=tuple(phases), kinds=hoister.kinds)


@dataclass
class _Scope:
    """Scope of one block: its enclosing arms, its named expressions, and its new statements."""

    arms: tuple[tuple[Expr, bool], ...] = ()
    known: dict[Expr, Ref] = field(default_factory=dict)
    added: list[Stmt] = field(default_factory=list)

    def arm(self, condition: Expr, is_then: bool, assigned_later: Collection[Ref]) -> _Scope:
        """Return the scope of one arm of a branch, without names computed after the branch."""
        known = {expr: ref for expr, ref in self.known.items() if ref not in assigned_later}
        return _Scope((*self.arms, (condition, is_then)), known)

    def excludes(self, arms: tuple[tuple[Expr, bool], ...]) -> bool:
        """Tell whether this block and a block in `arms` lie in opposite arms of one branch."""
        return any((condition, not is_then) in arms for condition, is_then in self.arms)


@dataclass
class _Hoister:
    """Hoister of the scalars of a plan's sweeps."""

    plan: Plan
    kinds: dict[Ref, Kind] = field(default_factory=dict)
    outside_branches: list[Assign] = field(default_factory=list)
    """Statements that can always be evaluated. `hoist_scalars` inserts them."""

    def __post_init__(self) -> None:
        self.kinds |= self.plan.kinds
        self.plan_names = {r.name for r in self.kinds}
        # name -> the arms and the expression of each use
        self.uses_of_name: dict[str, list[tuple[tuple[tuple[Expr, bool], ...], Expr]]] = {}
        self.assigned_in_branches = {
            a.target for stmt in self.plan.scalars if isinstance(stmt, If) for a in assigns((stmt,))
        }
        self.optional = {h.name for h in self.plan.algorithm.hypers if h.optional}
        self.known: dict[Expr, Ref] = {}

    def block(self, scalars: Program, body: Program, scope: _Scope) -> tuple[Program, Program]:
        """Hoist from one block of a sweep into the matching block of the scalar program.

        Returns:
            The new block of the scalar program, and the new block of the sweep.
        """
        new_scalars: list[Stmt] = list(scalars)
        new_body: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Assign):
                new_body.append(replace(stmt, value=self._value(stmt, scope)))
            else:
                new_body.append(self._branch(new_scalars, stmt, scope))
        return (*new_scalars, *scope.added), tuple(new_body)

    def _branch(self, scalars: list[Stmt], stmt: If, scope: _Scope) -> If:
        """Hoist from both arms of a sweep's branch, and return the branch.

        The statements go into the branch of `scalars` on the same condition, or else into a new
        branch, which is added to the scope.
        """
        index, branch = _matching_branch(stmt, scalars)
        assigned_later: set[Ref] = set()
        if index is not None:
            # Move the new statements before the branch, so that its arms can read their names;
            # but those that read what the branch assigns must stay after the branch.
            moved = _with_operands(scope.added, scalars[index + 1 :])
            if not refs_read(tuple(moved)) & {a.target for a in assigns((branch,))}:
                scalars[:] = [s for s in scalars if all(s is not e for e in moved)]
                scalars[index:index], scope.added = moved, []
                index += len(moved)
            assigned_later = {a.target for a in assigns((*scalars[index:], *scope.added))}
        then_scope, else_scope = (
            scope.arm(stmt.condition, is_then, assigned_later) for is_then in (True, False)
        )
        then_scalars, then = self.block(branch.then, stmt.then, then_scope)
        else_scalars, orelse = self.block(branch.orelse, stmt.orelse, else_scope)
        if then_scalars or else_scalars:
            branch = replace(branch, then=then_scalars, orelse=else_scalars)
            if index is None:
                scope.added.append(branch)
            else:
                scalars[index] = branch
        return replace(stmt, then=then, orelse=orelse)

    def _value(self, stmt: Assign, scope: _Scope) -> Expr:
        """Return the value of a statement with every scalar in it named."""
        target = stmt.target.name

        def with_name(expr: Expr, hints: tuple[str, ...]) -> Expr:
            is_negative, unsigned = split_sign(expr)
            if isinstance(unsigned, Const | Ref) or not self._kind(unsigned).is_scalar:
                return expr
            ref = self._known_name(unsigned, scope) or self._name(unsigned, hints, scope)
            return negate(ref) if is_negative else ref

        def inner(expr: Expr, hints: tuple[str, ...] = ()) -> Expr:
            if isinstance(expr, Linear):
                return replace(
                    expr, terms=tuple(term(t, inner_scalar_names(t)) for t in expr.terms)
                )
            if isinstance(expr, Call) and expr.op == "lerp":
                start, end, weight = expr.args
                args = (inner(start), inner(end), inner(weight, ("lerp_weight",)))
                return replace(expr, args=args)
            op = expr.op if isinstance(expr, Call) else ""
            has_numbers = op in OPS and OPS[op].category in ("comparison", "logic")
            if self._kind(expr).is_tensor or has_numbers:
                return rebuild(expr, inner)
            if op in ("truth", "is_none", "fresh"):  # a condition without a number to name
                return expr
            return with_name(expr, hints or inner_scalar_names(Term(expr)))

        def term(t: Term, hints: tuple[str, ...]) -> Term:
            factors, divisors = tuple(map(inner, t.factors)), tuple(map(inner, t.divisors))
            return Term(with_name(t.coefficient, hints), factors, divisors)

        if isinstance(stmt.value, Linear):
            terms = tuple(term(t, coefficient_names(target, t)) for t in stmt.value.terms)
            return replace(stmt.value, terms=terms)
        return rebuild(stmt.value, inner) if is_reduction(stmt.value) else inner(stmt.value)

    def _kind(self, expr: Expr) -> Kind:
        return kind_of(expr, self.kinds.__getitem__)

    def _known_name(self, expr: Expr, scope: _Scope) -> Ref | None:
        return scope.known.get(expr) or self.known.get(expr)

    def _name(self, expr: Expr, hints: tuple[str, ...], scope: _Scope) -> Ref:
        """Name a scalar and its nameable parts, and add their statements in the right place."""
        value = rebuild(expr, lambda e: self._with_named_parts(e, scope))
        derived_name = scalar_name(value)
        candidates = (derived_name,) if derived_name else hints
        always_defined = self._is_always_defined(expr)
        ref = Ref(self._free_name(candidates, value, _Scope() if always_defined else scope))
        self.kinds[ref] = self._kind(expr)
        if always_defined:
            self.outside_branches.append(Assign(ref, value))
            self.known[expr] = ref
        else:
            scope.added.append(Assign(ref, value))
            scope.known[expr] = ref
        return ref

    def _with_named_parts(self, expr: Expr, scope: _Scope) -> Expr:
        """Return an expression with its nameable parts, or the whole, replaced by names."""
        if isinstance(expr, Const | Ref):
            return expr
        known = self._known_name(expr, scope)
        if known is not None:
            return known
        if scalar_name(expr):
            return self._name(expr, (), scope)
        return rebuild(expr, lambda e: self._with_named_parts(e, scope))

    def _is_always_defined(self, expr: Expr) -> bool:
        """Tell whether a scalar can be evaluated for all inputs, outside of every branch."""
        if any(isinstance(e, Call) and e.op not in _ALWAYS_DEFINED for e in walk(expr)):
            return False
        return not any(
            ref in self.assigned_in_branches or ref.name in self.optional for ref in refs(expr)
        )

    def _free_name(self, hints: tuple[str, ...], expr: Expr, scope: _Scope) -> str:
        """Return the first hint that is free here. Opposite arms may share a name."""
        names = itertools.chain(hints, numbered(hints[-1]))
        name = next(name for name in names if self._is_free(name, expr, scope))
        self.uses_of_name.setdefault(name, []).append((scope.arms, expr))
        return name

    def _is_free(self, name: str, expr: Expr, scope: _Scope) -> bool:
        if not is_free(name, self.plan_names):
            return False
        uses = self.uses_of_name.get(name, ())
        return all(other == expr or scope.excludes(arms) for arms, other in uses)


def _matching_branch(stmt: If, scalars: Iterable[Stmt]) -> tuple[int | None, If]:
    """Return the index of the scalar program's branch on the same condition, and the branch.

    If there is none, return None and an empty branch.
    """
    for index, other in enumerate(scalars):
        if isinstance(other, If) and (other.condition, other.place) == (stmt.condition, stmt.place):
            return index, other
    return None, replace(stmt, then=(), orelse=())


def _with_operands(added: list[Stmt], later: list[Stmt]) -> list[Stmt]:
    """Return the added statements, preceded by the later statements that they read."""
    needed = refs_read(tuple(added))
    operands: list[Stmt] = []
    for stmt in reversed(later):
        if isinstance(stmt, Assign) and stmt.target in needed:
            operands.insert(0, stmt)
            needed |= set(refs(stmt.value))
    return [*operands, *added]


def _after_operands(stmt: Assign, scalars: Program, earlier: list[Assign]) -> Program:
    """Return the program with a statement inserted after its operands.

    If statements of `earlier` or tuple unpackings follow the operands, the statement goes after
    these. So hoisted statements keep their order, and the unpackings of one tuple stay together.
    """
    needed = set(refs(stmt.value))
    index = 0
    for position, other in enumerate(scalars, 1):
        if any(a.target in needed for a in assigns((other,))):
            index = position
    while index < len(scalars):
        other = scalars[index]
        is_unpacking = isinstance(other, Assign) and is_item(other.value)
        if not (is_unpacking or other in earlier):
            break
        index += 1
    return (*scalars[:index], stmt, *scalars[index:])
