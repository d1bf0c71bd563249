"""Plan an algorithm: a scalar program, and sweeps that are cut at reductions and matrix ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias

from optgen.ir.algorithm import Algorithm, IdentityKey
from optgen.ir.execution import why_uncut
from optgen.ir.kinds import Kind
from optgen.ir.nodes import (
    Call,
    Program,
    Ref,
    RuleError,
    assigns,
    expressions,
    filter_assigns,
    refs,
    walk,
)
from optgen.ir.ops import MATRIX_OPS
from optgen.ir.plan import (
    Finish,
    MatrixCall,
    Phase,
    Plan,
    Sweep,
    fresh_keys_of,
    streams_of,
    streams_of_sweep,
)
from optgen.ir.verify_reads import StaleReadError, verify_reads
from optgen.passes.cut_phases import RulePhases, as_one_phase, cut_at_matrix_ops
from optgen.passes.dead_code import (
    drop_redundant_stores,
    used_scalars,
    without_dead_code,
    without_self_copies,
    without_unused,
)
from optgen.passes.dependency_depth import CyclicDependencyError, kinds_of
from optgen.passes.equal_values import share_equal_values
from optgen.passes.extract_subexpressions import (
    name_items,
    name_products,
    name_properties,
    name_reductions,
    shared_decompositions,
)
from optgen.passes.fold_constants import fold_constants
from optgen.passes.hoist_between_sweeps import hoist_between_sweeps
from optgen.passes.prepare_rule import (
    Facts,
    add_maximize,
    drop_unused_hypers,
    expand_reductions,
    fact_combinations,
    rename,
    specialize,
)
from optgen.passes.split_scalars import Splitter, rounded_refs
from optgen.passes.ssa import copy_overwritten_scalars, split_live_ranges, to_ssa

Order: TypeAlias = Literal["late", "early", "whole"]
"""Choice of the sweep that stores a state.

"late": the last sweep that needs the old value. Sweeps that need the new value recompute it.
"early": the first sweep that knows the new value. Later sweeps read it back.
"whole": the plan is not cut. It is one sweep, executed statement by statement on whole tensors.
Rules on whole matrices have no other plan.
"""


def plans(algorithm: Algorithm, order: Order = "late") -> tuple[Plan, ...]:
    """Return one plan for each combination of shape predicates that the rule reads."""
    return tuple(plan(algorithm, facts, order) for facts in fact_combinations(algorithm))


def plan(algorithm: Algorithm, facts: Facts | None = None, order: Order = "late") -> Plan:
    """Return the plan of an algorithm for parameters with these shape predicates.

    The plan is cached, because several lowerings use it.

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
    order = "whole" if why_uncut(algorithm) else order
    specialized = specialize(add_maximize(name_items(drop_unused_hypers(algorithm))), facts)
    named = rename(expand_reductions(name_properties(fold_constants(specialized))))
    try:
        result = _build_plan(named, order, separate_versions=False)
    except (CyclicDependencyError, StaleReadError):
        try:
            result = _build_plan(named, order, separate_versions=True)
        except CyclicDependencyError as error:
            if rule_error := circular_matrix_op(named.rule):
                raise rule_error from error
            raise
    if not result.sweeps:
        raise changes_nothing(algorithm, facts)
    return replace(result, facts=facts, fresh_keys=fresh_keys_of(algorithm))


def _build_plan(named: Algorithm, order: Order, separate_versions: bool) -> Plan:
    """Return the plan of a rule that is not yet in SSA form.

    With `separate_versions`, every version of a name except the last gets its own name, and the two
    arms of a branch share none of these names. Some rules need that; the other rules need fewer
    tensors if versions share names.

    Raises:
        CyclicDependencyError: Values of both arms of a branch depend on one another.
        StaleReadError: Sweeps disagree about the value of a name.
    """
    versioned, kinds, cut, stores_early = _cut(named, order, separate_versions)
    scalars, sweeps = _split(versioned, cut, kinds, stores_early)
    finishes_and_calls = (*cut.finishes, *cut.calls)
    scalars, programs = copy_overwritten_scalars(scalars, (*sweeps, *finishes_and_calls), kinds)
    programs = without_unused(programs, versioned)
    programs = programs if cut.is_whole else without_dead_code(programs, cut, versioned)
    scalars = without_self_copies(used_scalars(scalars, programs, versioned))
    complete = Plan(versioned, scalars, _phases(versioned, cut, programs), kinds)
    if complete.is_cut:  # `verify_reads` raises where sweeps disagree about a state
        verify_reads(hoist_between_sweeps(complete))
    shorter = tuple(map(without_self_copies, programs))
    result = replace(complete, phases=_phases(versioned, cut, shorter))
    return result if order == "whole" else hoist_between_sweeps(result)


def _cut(
    algorithm: Algorithm, order: Order, separate_versions: bool
) -> tuple[Algorithm, dict[Ref, Kind], RulePhases, bool]:
    """Return the rule in SSA form, its kinds, its phases, and whether they store states early."""
    in_ssa = to_ssa(algorithm, separate_versions)
    if order == "whole":
        named = name_products(name_reductions(share_equal_values(in_ssa)))
    else:
        named = name_reductions(in_ssa)
    versioned = split_live_ranges(drop_redundant_stores(named), split_tensors=separate_versions)
    kinds = kinds_of(versioned)
    if order == "whole":
        return versioned, kinds, as_one_phase(versioned), False
    return versioned, kinds, *cut_at_matrix_ops(versioned, kinds, order == "early")


def _split(
    algorithm: Algorithm, cut: RulePhases, kinds: dict[Ref, Kind], stores_early: bool
) -> tuple[Program, tuple[Program, ...]]:
    """Return the scalar program, and the tensor statements of each sweep in linear form."""
    rounded = rounded_refs(algorithm.rule)
    if cut.is_whole:
        held = shared_decompositions(algorithm.rule)
        splitter = Splitter(algorithm, kinds, held=held, rounded=rounded)
        scalars, body = splitter.split(algorithm.rule)
        return scalars, (body,)
    numbers = filter_assigns(algorithm.rule, lambda a: kinds[a.target].is_scalar)
    splitter = Splitter(replace(algorithm, rule=numbers), kinds)
    scalars, _ = splitter.split(numbers)
    sweeps: list[Program] = []
    ops = (a.value for call in cut.calls for a in assigns(call))
    held = frozenset(ref for op in ops for ref in refs(op))  # not inlined: matrix ops take names
    for sweep in cut.sweeps:
        sweep_rule = replace(algorithm, rule=sweep)
        sweep_splitter = Splitter(
            sweep_rule, kinds, dict(splitter.ranges), held=held, rounded=rounded
        )
        sweeps.append(sweep_splitter.split(sweep)[1])
        if stores_early:
            held |= {a.target for a in assigns(sweeps[-1])}
    return scalars, tuple(sweeps)


def _phases(
    algorithm: Algorithm, cut: RulePhases, programs: Sequence[Program]
) -> tuple[Phase, ...]:
    """Return the phases in order: for each sweep its matrix ops, its `Finish`, and the sweep.

    `programs` has the bodies of all sweeps, then those of the finishes, then the matrix ops. Empty
    phases are left out. A `Finish` reads no number, row or column from before the matrix ops of its
    sweep: see `cut_phases`.
    """
    num_sweeps = len(cut.sweeps)
    sweeps, finishes, calls = (
        programs[:num_sweeps],
        programs[num_sweeps : 2 * num_sweeps],
        programs[2 * num_sweeps :],
    )
    results: dict[str, None] = {}  # names of the results of matrix ops so far
    phases: list[Phase] = []
    for sweep in range(num_sweeps):
        for stmt in assigns(calls[sweep]):
            assert isinstance(stmt.value, Call)
            phases.append(MatrixCall(stmt.target, stmt.value.op, stmt.value.args, stmt.quote))
            results[stmt.target.name] = None
        if finishes[sweep]:
            phases.append(Finish(finishes[sweep]))
        if sweeps[sweep]:
            next_ops = (e for program in calls[sweep + 1 : sweep + 2] for e in expressions(program))
            read_by_ops = {ref.name for expr in next_ops for ref in refs(expr)}
            stored = cut.stored[sweep]
            inputs = tuple(name for name in cut.call_inputs[sweep] if name in read_by_ops)
            streams = streams_of_sweep(algorithm, sweeps[sweep], stored, inputs, tuple(results))
            phases.append(Sweep(streams, sweeps[sweep]))
    match phases:
        case [Sweep(_, body)]:  # a single sweep gets every tensor, read or not
            return (Sweep(streams_of(algorithm, body), body),)
    return tuple(phases)


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
