"""Test that the verifier accepts valid programs, and refuses those that a broken pass makes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from invariants import verify_algorithm, verify_plan
from planning import PASSES, RULES
from spec_texts import read, spec

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Const, If, Linear, Program, Ref, Stmt, Term
from optgen.ir.plan import Plan
from optgen.ir.verify_reads import VerifyError
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan_rule import plan
from optgen.passes.prepare_rule import add_maximize, use_printed_names
from optgen.passes.ssa import to_ssa

G, P, LR = Ref("grad"), Ref("param"), Ref("lr")
MOMENTUM = 'm=state("exp_avg")'


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_valid_after_every_pass(name: str) -> None:
    algorithm = RULES[name]
    for transform in (lambda a: a, add_maximize, lambda a: use_printed_names(add_maximize(a))):
        verify_algorithm(to_ssa(transform(algorithm)))
    for passes, make in PASSES.items():
        verify_plan(make(algorithm), hoisted="hoisted" in passes)


def ssa(*body: str) -> Algorithm:
    """Return an algorithm in SSA form whose rule has these lines."""
    return to_ssa(use_printed_names(read(spec(*body))))


def with_rule(*stmts: Stmt) -> Algorithm:
    """Return an algorithm with a rule of these statements."""
    return replace(ssa(), rule=stmts)


def linear(*terms: Term) -> Linear:
    return Linear(terms)


ONE, P1 = Const(1), Ref("param", 1)
STEP = Assign(Ref("param", 1), Call("-", (P, Call("*", (LR, G)))))
BAD_RULES = {
    "undefined": with_rule(Assign(Ref("param", 1), Ref("u"))),
    "old version": with_rule(STEP, Assign(Ref("u", 1), P)),
    "new version too soon": with_rule(Assign(Ref("u", 1), Ref("param", 1)), STEP),
    "one version twice": with_rule(STEP, replace(STEP, value=G)),
    "arms end in two versions": with_rule(
        If(LR, (STEP,), (Assign(Ref("param", 2), G),)), Assign(Ref("u", 1), Ref("param", 2))
    ),
    "one arm only": with_rule(If(LR, (Assign(Ref("u", 1), G),)), Assign(Ref("u", 2), Ref("u", 1))),
    "if on a tensor": with_rule(If(Call(">", (G, Const(0))), (STEP,))),
    "unknown word": with_rule(Assign(Ref("param", 1), Call("newton", (G,)))),
    "wrong arity": with_rule(Assign(Ref("param", 1), Call("sqrt", (G, G)))),
    "linear form": with_rule(Assign(Ref("param", 1), linear(Term(ONE, (G,))))),
    "copied in one arm": with_rule(
        If(LR, (Assign(Ref("grad", 1), G),), (Assign(Ref("grad", 1), P),)), Assign(P1, G)
    ),
    "copy of an old version": with_rule(STEP, Assign(Ref("param", 2), P), Assign(Ref("u", 1), P)),
}
VALID_RULES = {
    "copied": with_rule(Assign(Ref("grad", 1), G), Assign(P1, Call("+", (G, Ref("grad", 1))))),
    "copied in both arms": with_rule(
        If(LR, (Assign(Ref("grad", 1), G),), (Assign(Ref("grad", 1), G),)), Assign(P1, G)
    ),
}


@pytest.mark.parametrize("case", VALID_RULES)
def test_an_old_version_may_be_read_after_its_copy(case: str) -> None:
    verify_algorithm(VALID_RULES[case])


LEFT_OUT_COPIES = {
    # Without flag_a, `m` keeps its old value in the inner branch, and also with flag_b.
    "of a nested branch": (
        *("if flag_b:", "    x = p", "else:", "    x = g", "    if flag_a:", "        m = p"),
        *("if flag_a:", "    w = w + p", "m = m + g", "p = p - lr * (m + x)"),
    ),
    # Without flag_a, both the old `g` and the one of the first branch are in the variable.
    "of a branch on the same condition": (
        *("if flag_a:", "    if flag_b:", "        g = 2 * g", "    w = w + g"),
        *("if flag_a:", "    g = 3 * g", "m = m + g", "p = p - lr * m"),
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT_COPIES)
def test_a_plan_may_leave_out_copies_where_a_later_branch_decides(case: str) -> None:
    text = spec(
        *LEFT_OUT_COPIES[case],
        states='m=state("exp_avg"), w=state("average", when="flag_a")',
        hypers="lr=hyper(0.1), flag_a=flag(False), flag_b=flag(False)",
    )
    verify_plan(plan(read(text)), hoisted=False)


@pytest.mark.parametrize("case", BAD_RULES)
def test_a_broken_rule_is_refused(case: str) -> None:
    with pytest.raises(VerifyError):
        verify_algorithm(BAD_RULES[case])


def valid_plan() -> Plan:
    """Return a valid plan with a scalar state and a branch."""
    body = ("s = s / 2", "m = m + s * g", "if t > 3:", "    m = 2 * m", "p = p - lr * m / t")
    states = f'{MOMENTUM}, s=state("mu", shape="scalar")'
    return hoist_scalars(plan(read(spec(*body, states=states))))


def with_last_statements(statements: Program) -> Plan:
    """Return the valid plan with these statements in place of its last one, the update."""
    valid = valid_plan()
    (sweep,) = valid.sweeps
    return replace(valid, phases=(replace(sweep, body=(*sweep.body[:-1], *statements)),))


def with_last_value(value: Linear) -> Plan:
    """Return the valid plan with this value in its last statement."""
    return with_last_statements((replace(valid_plan().sweeps[0].body[-1], value=value),))


M = Ref("exp_avg", 3)


def bad_plans() -> dict[str, Plan]:
    valid = valid_plan()
    (sweep,) = valid.sweeps
    sweep_without_assignments = replace(sweep, body=())
    return {
        "sum of nothing": with_last_value(linear()),
        "like terms": with_last_value(linear(Term(ONE, (M,)), Term(Const(2), (M,)))),
        "scalar without a name": with_last_value(linear(Term(Call("*", (LR, LR)), (M,)))),
        "tensor for a coefficient": with_last_value(linear(Term(M, (P,)))),
        "scalar among the factors": with_last_value(linear(Term(ONE, (LR,)))),
        "scalar among the divisors": with_last_value(linear(Term(ONE, (M,), (LR,)))),
        "bare expression inside a word": with_last_value(
            linear(Term(ONE, (Call("sqrt", (P,)), LR)))
        ),
        "old state after its store": with_last_value(linear(Term(ONE, (Ref("exp_avg"),)))),
        "old scalar state": with_last_value(linear(Term(Ref("mu"), (M,)))),
        "unknown scalar": with_last_value(linear(Term(Ref("nobody"), (M,)))),
        "bare expression": with_last_statements((Assign(Ref("param", 1), M),)),
        "parameter not stored": replace(valid, phases=(replace(sweep, body=sweep.body[:-1]),)),
        "state not stored": replace(valid, scalars=()),
        "streams of another order": replace(
            valid, phases=(replace(sweep, streams=sweep.streams[::-1]),)
        ),
        "stored twice": replace(valid, phases=(sweep, sweep)),
        "stored and never assigned": replace(valid, phases=(sweep, sweep_without_assignments)),
    }


def test_a_valid_plan_is_accepted() -> None:
    verify_plan(valid_plan())
    verify_plan(with_last_value(linear(Term(Ref("mu", 1), (M,)))))


@pytest.mark.parametrize("case", bad_plans())
def test_a_broken_plan_is_refused(case: str) -> None:
    with pytest.raises(VerifyError):
        verify_plan(bad_plans()[case])


def test_a_read_of_a_scalar_that_the_other_arm_computes_is_refused() -> None:
    body = ("if t > 3:", "    r = sqrt(t - 3)", "    p = p - r * g", "else:", "    p = p - lr * g")
    valid = hoist_scalars(plan(read(spec(*body))))
    verify_plan(valid)
    (sweep,) = valid.sweeps
    branch = sweep.body[-1]
    assert isinstance(branch, If)
    swapped = replace(branch, then=branch.orelse, orelse=branch.then)
    with pytest.raises(VerifyError, match="undefined on this path"):
        verify_plan(replace(valid, phases=(replace(sweep, body=(*sweep.body[:-1], swapped)),)))
