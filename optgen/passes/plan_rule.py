"""Plan a rule: run the passes of a target, which `all_passes.py` lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from optgen.ir.algorithm import Algorithm, IdentityKey
from optgen.ir.execution import why_whole
from optgen.ir.nodes import Call, Const, Ref, RuleError
from optgen.ir.ops import OPS
from optgen.ir.plan import Plan, fresh_keys_of
from optgen.ir.verify_reads import StaleReadError
from optgen.passes.all_passes import COMMON, Passes, Target
from optgen.passes.cut_phases import CrossingError, Order
from optgen.passes.dependency_depth import CyclicDependencyError
from optgen.passes.prepare_for_kernels import load_device_scalars
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
        RuleError: The rule changes no tensor.
    """
    if order == "early" and algorithm.elementwise:
        order = "late"  # its only sweep stores all states
    if why_uncut(algorithm):
        order = "whole"
    cached = _cached_plan(IdentityKey(algorithm), tuple((facts or {}).items()), order)
    return replace(cached, facts=dict(cached.facts), kinds=dict(cached.kinds))


def why_uncut(algorithm: Algorithm) -> str:
    """Say in a few words why a rule works on whole tensors; "" if it is cut into sweeps.

    Kernels are not given numbers, rows and columns of sweeps before a matrix op, and the runtime
    knows only constants and hyperparameters between two sweeps. So a rule is not cut that needs a
    number before and after the op, or that computes an argument of the op.
    """
    return why_whole(algorithm) or _why_cut_fails(IdentityKey(algorithm))


@lru_cache(maxsize=32)
def _why_cut_fails(key: IdentityKey) -> str:
    """Say in a few words why a rule cannot be cut at a matrix op, in one of its plans."""
    if not key.algorithm.has_matrix_ops:
        return ""
    orders: tuple[Order, ...] = "late", "early"
    try:
        for algorithm in dict.fromkeys((key, IdentityKey(load_device_scalars(key.algorithm)))):
            for facts in fact_combinations(algorithm.algorithm):
                for order in orders:
                    planned = _cached_plan(algorithm, tuple(facts.items()), order)
                    if op := _op_of_computed_numbers(planned):
                        return f"an argument of `{op}` is computed"
    except CrossingError as error:
        return str(error)
    return ""


def _op_of_computed_numbers(planned: Plan) -> str:
    """Return a matrix op that takes other numbers than hyperparameters and constants; else ""."""
    names = {hyper.name for hyper in planned.algorithm.hypers}
    for call in planned.matrix_calls:
        for number in call.args[1 : OPS[call.op].arity]:
            match number:
                case Const() | Call("neg", (Const(),)):
                    continue
                case Ref(name, 0) if name in names:
                    continue
            return call.op
    return ""


@lru_cache(maxsize=32)  # enough for the plans of a few algorithms, which are used in turn
def _cached_plan(key: IdentityKey, facts_items: tuple[tuple[str, bool], ...], order: Order) -> Plan:
    """Return a plan whose mappings belong to the cache.

    Raises:
        CrossingError: The rule cannot be cut at a matrix op.
        RuleError: The rule changes no tensor.
    """
    algorithm, facts = key.algorithm, dict(facts_items)
    request = Request(facts, order)
    passes = COMMON[request.order]
    try:
        result = _run(passes, algorithm, request)
    except (CyclicDependencyError, StaleReadError):
        try:
            result = _run(passes, algorithm, replace(request, separate_versions=True))
        except CyclicDependencyError as error:
            if not algorithm.has_matrix_ops or order == "whole":
                raise
            message = "a matrix op and a value that is read after it depend on each other"
            raise CrossingError(message) from error
    if not result.sweeps:
        raise changes_nothing(algorithm, facts)
    return replace(result, facts=facts, fresh_keys=fresh_keys_of(algorithm))


def _run(passes: Passes, rule: Any, request: Request) -> Plan:
    """Return what passes make of a rule, one after the other."""
    for each in passes:
        rule = each.run(rule, *(getattr(request, field) for field in each.asks))
    planned: Plan = rule
    return planned


def changes_nothing(algorithm: Algorithm, facts: Facts) -> RuleError:
    """Return the error for a rule that gives no tensor a new value."""
    cases = " and ".join(fact if holds else f"not {fact}" for fact, holds in facts.items())
    return RuleError(
        algorithm.place,
        "the rule changes no tensor" + (f" of parameters that are {cases}" if cases else ""),
        f"{algorithm.param} = …, the update",
    )
