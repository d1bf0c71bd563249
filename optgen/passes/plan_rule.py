"""Plan a rule: run the passes of a target, which `all_passes.py` lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from optgen.ir.algorithm import Algorithm, IdentityKey
from optgen.ir.execution import why_uncut
from optgen.ir.nodes import Call, Program, RuleError, assigns, walk
from optgen.ir.ops import MATRIX_OPS
from optgen.ir.plan import Plan, fresh_keys_of
from optgen.ir.verify_reads import StaleReadError
from optgen.passes.all_passes import COMMON, Passes, Target
from optgen.passes.cut_phases import Order
from optgen.passes.dependency_depth import CyclicDependencyError
from optgen.passes.prepare_rule import Facts, fact_combinations


@dataclass(frozen=True)
class Request:
    """A request for a plan: what passes ask for besides the rule.

    With `separate_versions`, every version of a name except the last gets its own name, and the two
    arms of a branch share none of these names. Some rules need that; the other rules need fewer
    tensors if versions share names.
    """

    facts: Facts
    order: Order
    separate_versions: bool = False


def target_plans(algorithm: Algorithm, target: Target) -> tuple[Plan, ...]:
    """Return a target's plans: one for each combination of shape predicates that the rule reads."""
    return tuple(target_plan(algorithm, facts, target) for facts in fact_combinations(algorithm))


def target_plan(algorithm: Algorithm, facts: Facts, target: Target) -> Plan:
    """Return the plan of a target for parameters with these shape predicates."""
    return run_own(target, plan(algorithm, facts, target.order))


def run_own(target: Target, planned: Plan) -> Plan:
    """Return a plan after a target's own passes."""
    return _run(target.own, planned, Request(planned.facts, target.order))


def plans(algorithm: Algorithm, order: Order = "late") -> tuple[Plan, ...]:
    """Return the plans before any target's own passes, one for each set of facts."""
    return tuple(plan(algorithm, facts, order) for facts in fact_combinations(algorithm))


def plan(algorithm: Algorithm, facts: Facts | None = None, order: Order = "late") -> Plan:
    """Return the plan of an algorithm before any target's own passes.

    The plan is cached, because several targets begin with it.

    Raises:
        RuleError: The rule cannot be cut at a matrix op, or changes no tensor.
    """
    if order == "early" and algorithm.elementwise:
        order = "late"  # its only sweep stores all states
    cached = _cached_plan(IdentityKey(algorithm), tuple((facts or {}).items()), order)
    return replace(cached, facts=dict(cached.facts), kinds=dict(cached.kinds))


@lru_cache(maxsize=32)  # enough for the plans of a few algorithms, which are used in turn
def _cached_plan(key: IdentityKey, facts_items: tuple[tuple[str, bool], ...], order: Order) -> Plan:
    """Return a plan whose mappings belong to the cache.

    Raises:
        RuleError: The rule cannot be cut at a matrix op, or changes no tensor.
    """
    algorithm, facts = key.algorithm, dict(facts_items)
    request = Request(facts, "whole" if why_uncut(algorithm) else order)
    passes = COMMON[request.order]
    try:
        result = _run(passes, algorithm, request)
    except (CyclicDependencyError, StaleReadError):
        try:
            result = _run(passes, algorithm, replace(request, separate_versions=True))
        except CyclicDependencyError as error:
            if rule_error := circular_matrix_op(algorithm.rule):
                raise rule_error from error
            raise
    if not result.sweeps:
        raise changes_nothing(algorithm, facts)
    return replace(result, facts=facts, fresh_keys=fresh_keys_of(algorithm))


def _run(passes: Passes, rule: Any, request: Request) -> Plan:
    """Return what passes make of a rule, one after the other."""
    for each in passes:
        rule = each.run(rule, *(getattr(request, field) for field in each.asks))
    planned: Plan = rule
    return planned


def circular_matrix_op(program: Program) -> RuleError | None:
    """Return the error for a circular dependency; None if the program has no matrix op."""
    for stmt in assigns(program):
        for call in walk(stmt.value):
            if isinstance(call, Call) and call.op in MATRIX_OPS:
                return RuleError(
                    call.place,
                    f"`{call.op}` and a value that is read after it depend on each other",
                    f"numbers, rows and columns are not kept across `{call.op}`: assign a row or "
                    f"column state after `{call.op}`",
                )
    return None


def changes_nothing(algorithm: Algorithm, facts: Facts) -> RuleError:
    """Return the error for a rule that gives no tensor a new value."""
    cases = " and ".join(fact if holds else f"not {fact}" for fact, holds in facts.items())
    return RuleError(
        algorithm.place,
        "the rule changes no tensor" + (f" of parameters that are {cases}" if cases else ""),
        f"{algorithm.param} = …, the update",
    )
