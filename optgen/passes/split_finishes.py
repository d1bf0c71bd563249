"""Split phases where a kernel of Triton must end.

A `Finish` ends at sums over all matrices of a tensor, and at reductions over parameters. Each
program of a kernel computes some of the matrices and stores a partial sum. The next kernel adds the
partial sums up. A reduction over parameters takes numbers that a kernel has stored, and the next
kernel reads the result.

A reduction that mixes rows and columns, as in `rms(r * k)`, moves into a sweep of its own, which
reads no stream. A `Finish` has one loop over rows and one over columns, and only sweeps have tiles
of elements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import reduce

from optgen.ir.execution import is_wide
from optgen.ir.kinds import Axes, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    Ref,
    assigns,
    filter_assigns,
    map_values,
)
from optgen.ir.plan import Finish, Phase, Plan, Sweep, WideCall, is_maximum, is_reduction, reads
from optgen.ir.reserved_in_python import free_name
from optgen.passes.hoist_between_sweeps import Arms, hoist_between_sweeps, inside_arms
from optgen.passes.linear_forms import Linearizer
from optgen.passes.ranges import declared_ranges


def split_finishes(plan: Plan) -> Plan:
    """Return a plan in which no finish reads a sum over all matrices that it computes itself.

    Each phase that stores partial sums is followed by a finish, possibly empty, that combines them.
    A reduction over parameters is a phase of its own.
    """
    phases: list[Phase] = []
    for phase in _split_phases(plan):
        if phases and _stores_partial_sums(plan, phases[-1]) and not isinstance(phase, Finish):
            phases.append(Finish(()))
        phases.append(phase)
    wide_calls = [phase for phase in phases if isinstance(phase, WideCall)]
    kinds = {ref: plan.kinds[call.target] for call in wide_calls for ref in reads(call.args[0])}
    return replace(plan, phases=tuple(phases), kinds={**kinds, **plan.kinds})


def _split_phases(plan: Plan) -> Iterator[Phase]:
    for phase in plan.phases:
        if isinstance(phase, Finish):
            used_names = {ref.name for ref in plan.kinds}
            for part in _split_at_sums(plan, phase):
                yield from _split_at_wide(part, used_names)
        else:
            yield phase


def _split_at_wide(finish: Finish, used_names: set[str]) -> Iterator[Phase]:
    """Split a finish at its reductions over parameters, which keep their order."""
    wide_statements = [a for a in assigns(finish.body) if is_wide(a.value)]
    if not wide_statements:
        yield finish
        return
    first, *others = wide_statements
    arms = _arms_around(finish.body, first)
    after = dependents(finish.body, {stmt.target for stmt in wide_statements}) | {
        s.target for s in others
    }
    before = filter_assigns(finish.body, lambda a: a.target not in {*after, first.target})
    assert isinstance(first.value, Call)
    (operand,) = first.value.args
    if not isinstance(operand, Ref):
        name = Ref(free_name(f"{first.target.name}_of_one", used_names))
        used_names.add(name.name)
        own_number = replace(first, target=name, value=operand)  # of this parameter alone
        before, operand = (*before, inside_arms(arms, own_number)), name
    if before:
        yield Finish(before)
    condition = _all_hold(arms)
    yield WideCall(first.target, first.value.op, (operand,), first.quote, condition)
    if rest := filter_assigns(finish.body, lambda a: a.target in after):
        yield from _split_at_wide(Finish(rest), used_names)


def _arms_around(program: Program, wanted: Assign) -> Arms:
    """Return the arms that enclose a statement of a program, the outermost first."""
    for stmt in program:
        if isinstance(stmt, Assign):
            continue
        for arm, holds in ((stmt.then, True), (stmt.orelse, False)):
            if any(each is wanted for each in assigns(arm)):
                return ((stmt.condition, holds), *_arms_around(arm, wanted))
    return ()


def _all_hold(arms: Arms) -> Expr | None:
    """Return the condition under which all these arms run; None if there are no arms."""
    conditions = [expr if holds else Call("not", (expr,)) for expr, holds in arms]
    return reduce(lambda a, b: Call("and", (a, b)), conditions) if conditions else None


def _stores_partial_sums(plan: Plan, phase: Phase) -> bool:
    match phase:
        case Sweep():
            return bool(phase.reductions)
        case Finish():
            return bool(partial_sums(plan, phase))
    return False


def partial_sums(plan: Plan, finish: Finish) -> list[Assign]:
    """Return the reductions over all matrices of which a finish stores partial sums.

    Maxima come last.
    """
    reductions = (a for a in assigns(finish.body) if is_reduction(a.value))
    of_all = (a for a in reductions if plan.kinds[a.target].axes is Axes.NONE)
    return sorted(of_all, key=lambda a: is_maximum(a.value))


def first_part(plan: Plan, finish: Finish) -> int:
    """Return the index of a finish's first partial sum, after those of earlier finishes."""
    position = next(n for n, phase in enumerate(plan.phases) if phase is finish)
    earlier = (p for p in plan.phases[:position] if isinstance(p, Finish))
    return sum(len(partial_sums(plan, p)) for p in earlier)


def _split_at_sums(plan: Plan, finish: Finish) -> Iterator[Finish]:
    """Split a finish so that no part reads a sum over all matrices that it computes itself."""
    after = dependents(finish.body, {a.target for a in partial_sums(plan, finish)})
    yield Finish(filter_assigns(finish.body, lambda a: a.target not in after))
    rest = filter_assigns(finish.body, lambda a: a.target in after)
    if rest:
        yield from _split_at_sums(plan, Finish(rest))


def dependents(body: Program, sums: Collection[Ref]) -> set[Ref]:
    """Return the values that depend on these sums.

    The result includes the new value of a state if a dependent value needs the old one.
    """
    dependent: set[Ref] = set()
    needed: set[Ref] = set()
    count_before = -1
    while len(dependent) > count_before:
        count_before = len(dependent)
        for stmt, conditions in with_conditions(body):
            read = {ref for expr in (stmt.value, *conditions) for ref in reads(expr)}
            overwrites = stmt.target.version and Ref(stmt.target.name) in needed
            if stmt.target in dependent or overwrites or read & {*dependent, *sums}:
                dependent.add(stmt.target)
                needed |= read
    return dependent


def with_conditions(
    program: Program, conditions: tuple[Expr, ...] = ()
) -> Iterator[tuple[Assign, tuple[Expr, ...]]]:
    """Yield every assignment with the conditions of its enclosing branches."""
    for stmt in program:
        if isinstance(stmt, If):
            inner_conditions = (*conditions, stmt.condition)
            yield from with_conditions(stmt.then, inner_conditions)
            yield from with_conditions(stmt.orelse, inner_conditions)
        else:
            yield stmt, conditions


def isolate_mixed_reductions(plan: Plan) -> Plan:
    """Return a plan whose finishes reduce only values of rows, of columns or of matrices."""
    phases: list[Phase] = []
    for phase in plan.phases:
        phases += _split(plan, phase.body) if isinstance(phase, Finish) else [phase]
    if len(phases) == len(plan.phases):
        return plan
    return hoist_between_sweeps(replace(plan, phases=tuple(phases)))


def _split(plan: Plan, body: Program) -> Iterator[Phase]:
    """Yield the phases of a finish: a sweep for its mixed reductions, between two finishes.

    The second finish has all that depends on a mixed reduction, and is split in the same way.
    """
    mixed = {a.target for a in assigns(body) if _is_mixed(plan, a)}
    if not mixed:
        yield Finish(body)
        return
    dependent = dependents(body, mixed)
    first_body = filter_assigns(body, lambda a: a.target not in dependent | mixed)
    if first_body:
        yield Finish(first_body)
    reductions = filter_assigns(body, lambda a: a.target in mixed - dependent)
    yield Sweep((), _with_linear_operands(plan, reductions))
    yield from _split(plan, filter_assigns(body, lambda a: a.target in dependent))


def _is_mixed(plan: Plan, stmt: Assign) -> bool:
    """Tell whether a statement reduces a value that depends on both rows and columns."""
    value = stmt.value
    if not is_reduction(value) or not isinstance(value, Call):
        return False
    return plan.kind(value.args[0]).axes is Axes.TENSOR


def _with_linear_operands(plan: Plan, body: Program) -> Program:
    """Return the reductions of a sweep with their operands in linear form."""

    def is_tensor(expr: Expr) -> bool:
        return kind_of(expr, plan.kinds.__getitem__).is_tensor

    def no_terms(_: Ref) -> None:
        return None

    linearizer = Linearizer(is_tensor, no_terms, declared_ranges(plan.algorithm))

    def with_linear_operand(value: Expr) -> Expr:
        assert isinstance(value, Call)
        return replace(value, args=(linearizer.linear(value.args[0]),))

    return map_values(body, with_linear_operand)
