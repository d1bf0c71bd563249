"""Check invariants of algorithms and plans that later passes rely on.

`optgen.ir.verify_reads` has the check that planning needs: that every read finds its version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import STATIC, Kind, declared_kinds, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Linear,
    Program,
    Ref,
    Term,
    assigns,
    expressions,
    walk,
)
from optgen.ir.ops import OPS, REDUCTIONS, WIDE_OPS
from optgen.ir.plan import Finish, Plan, Sweep, is_reduction
from optgen.ir.verify_reads import Variables, VerifyError, fail, verify_reads, written_versions


def verify_algorithm(algorithm: Algorithm) -> None:
    """Check an algorithm in SSA form, as `to_ssa` returns it.

    Raises:
        VerifyError: an invariant is broken; the message shows the expression.
    """
    kinds = {Ref(name): kind for name, kind in declared_kinds(algorithm).items()}
    _add_kinds(algorithm.rule, kinds)
    _check_axes(algorithm, kinds)
    for expr in expressions(algorithm.rule):
        _check_ops(expr)
        if any(isinstance(e, Linear) for e in walk(expr)):
            fail("a linear form belongs to a plan", expr)
    written = written_versions([algorithm.rule])
    Variables(kinds, declared_kinds(algorithm), written, has_copies=True).run(algorithm.rule)


def verify_plan(plan: Plan, *, hoisted: bool = True) -> None:
    """Check a plan. If `hoisted`, coefficients must be numbers, named scalars or their negations.

    Raises:
        VerifyError: an invariant is broken; the message shows the expression.
    """
    verify_reads(plan)
    verify_form(plan, hoisted=hoisted)


def verify_form(plan: Plan, *, hoisted: bool = True) -> None:
    """Check a plan, but not which versions it reads: a finished plan leaves copies out.

    Raises:
        VerifyError: an invariant is broken; the message shows the expression.
    """
    for expr in (*expressions(plan.scalars), *plan.values()):
        _check_ops(expr)
    for stmt in assigns(plan.scalars):
        if not plan.kind(stmt.value).is_scalar:
            fail("a tensor in the scalar program", stmt.value)
    for sweep in plan.sweeps:
        _FormChecker(plan.kinds, hoisted).check(sweep.body)
        _check_streams(plan, sweep)
    _check_stores(plan)


@dataclass
class _FormChecker:
    """Check that tensor values are linear forms, and that these have valid operands."""

    kinds: Mapping[Ref, Kind]
    hoisted: bool

    def check(self, body: Program) -> None:
        """Check every value that a sweep assigns."""
        for stmt in assigns(body):
            match stmt.value:
                case Linear():
                    self._check_linear(stmt.value)
                case Call("copy", (Ref() as source,)) if self._is_tensor(source):
                    pass
                case Call(op, _) if op in WIDE_OPS:
                    pass
                case Call(_, (reduced,)) if is_reduction(stmt.value):
                    self._check_operand(reduced)
                case _:
                    fail("a tensor value that is no linear form", stmt.value)

    def _is_tensor(self, expr: Expr) -> bool:
        return kind_of(expr, self.kinds.__getitem__).is_tensor

    def _check_linear(self, form: Linear) -> None:
        if not form.terms:
            fail("a sum of nothing", form)
        like_terms = Counter((t.factors, t.divisors) for t in form.terms)
        if max(like_terms.values()) > 1:
            fail("like terms that were not added up", form)
        for term in form.terms:
            self._check_term(term)

    def _check_term(self, term: Term) -> None:
        self._check_scalar(term.coefficient)
        for part in (*term.factors, *term.divisors):
            if not self._is_tensor(part):
                fail("a scalar among the factors", part)
            self._check_operand(part)

    def _check_operand(self, expr: Expr) -> None:
        match expr:
            case Linear():
                self._check_linear(expr)
            case Call(_, args):
                for arg in args:
                    if self._is_tensor(arg):
                        self._check_operand(arg)
                    else:
                        self._check_scalar(arg)

    def _check_scalar(self, expr: Expr) -> None:
        if self._is_tensor(expr):
            fail("a tensor for a coefficient", expr)
        match expr:
            case Const() | Ref() | Call("neg", (Ref(),)) | Call("truth" | "is_none" | "fresh", _):
                return
            case Call(op, args) if OPS[op].category in ("comparison", "logic"):
                for arg in args:
                    self._check_scalar(arg)
            case _ if self.hoisted:
                fail("a scalar without a name", expr)


def _check_axes(algorithm: Algorithm, kinds: Mapping[Ref, Kind]) -> None:
    """Check that a declared name keeps its axes, and that every reduction has an axis to reduce."""
    declared = declared_kinds(algorithm)
    for stmt in assigns(algorithm.rule):
        declared_kind = declared.get(stmt.target.name)
        if declared_kind is not None and kinds[stmt.target].axes is not declared_kind.axes:
            fail(
                f"{declared_kind.axes.name} is assigned {kinds[stmt.target].axes.name}", stmt.target
            )
    for node in (n for expr in expressions(algorithm.rule) for n in walk(expr)):
        if isinstance(node, Call) and node.op in REDUCTIONS:
            (argument,) = node.args
            axes = kind_of(argument, lambda ref: kinds.get(ref, STATIC)).axes
            if axes is kind_of(node, lambda ref: kinds.get(ref, STATIC)).axes:
                fail("a reduction without an axis to reduce", node)


def _add_kinds(program: Program, kinds: dict[Ref, Kind]) -> None:
    """Add to `kinds` the kinds of the names that a program assigns."""
    for stmt in program:
        if isinstance(stmt, Assign):
            kind = kind_of(stmt.value, lambda ref: kinds.get(ref, STATIC))
            known = kinds.get(stmt.target)
            kinds[stmt.target] = kind.join(known) if known else kind
        else:
            _add_kinds(stmt.then, kinds)
            _add_kinds(stmt.orelse, kinds)


def _check_ops(expr: Expr) -> None:
    for node in walk(expr):
        if isinstance(node, Call):
            op = OPS.get(node.op)
            if op is None:
                fail("an unknown op", node)
            if len(node.args) not in (op.arity, op.arity + op.options):
                fail(f"`{node.op}` takes {op.arity} operands", node)


def _check_streams(plan: Plan, sweep: Sweep) -> None:
    """Check that a sweep touches its streams in the usual order, and stores what it assigns.

    In a plan of several phases, a sweep may touch fewer streams, and may leave stores to a later
    sweep. Local streams come last.
    """
    algorithm, is_cut = plan.algorithm, plan.is_cut
    names = [s.name for s in sweep.streams if s.role != "local"]
    expected = [algorithm.param, algorithm.grad, *(s.symbol for s in algorithm.tensor_states())]
    if names != ([n for n in expected if n in names] if is_cut else expected):
        raise VerifyError(f"the streams are {names}, not {expected}")
    stored = {s.name for s in sweep.streams if s.stored}
    zeroed = stored & {algorithm.grad} if algorithm.zero_grad else set()
    written = {a.target.name for a in assigns(sweep.body)} - {algorithm.grad} | zeroed
    if not stored <= written if is_cut else stored != written & set(names):
        raise VerifyError(f"stored are {sorted(stored)}, assigned {sorted(written)}")


def _check_stores(plan: Plan) -> None:
    """Check that exactly one phase stores the parameter, and each state that the rule assigns."""
    stores = Counter(s.name for sweep in plan.sweeps for s in sweep.streams if s.stored)
    finishes = (phase.body for phase in plan.phases if isinstance(phase, Finish))
    for program in (plan.scalars, *finishes):
        stores.update({a.target.name for a in assigns(program)})
    assigned = {a.target.name for a in assigns(plan.algorithm.rule)}
    for name in (plan.algorithm.param, *(s.symbol for s in plan.algorithm.states)):
        if stores[name] != 1 and (stores[name] or name in assigned):
            raise VerifyError(f"`{name}` is stored in {stores[name]} phases")
