"""Describe the Triton file of a rule with phases for the template: each plan's kernels in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from optgen.ir.kinds import Axes
from optgen.ir.nodes import Ref
from optgen.ir.plan import Finish, Plan, Sweep, WideCall
from optgen.lowerings.fused_triton.address_printer import uses
from optgen.lowerings.fused_triton.expression_printer import variable
from optgen.lowerings.fused_triton.finishes import FinishKernel, FinishPrinter
from optgen.lowerings.fused_triton.prologue import PackedScalars, Prologue
from optgen.lowerings.fused_triton.split_phases import first_part, partial_sums, split_finishes
from optgen.lowerings.fused_triton.sweeps import Kernels, reduction_context, used_streams
from optgen.lowerings.fused_triton.workspace_slots import (
    SMALL_VALUE_AXES,
    Slots,
    allocate_slots,
    is_by_matrix,
    names_computed_by,
    names_read_by,
)

Context = dict[str, Any]


def plan_context(plan: Plan, addresses: Sequence[str]) -> Context:
    """Return the template's variables for one plan: its kernels, and their workspace."""
    plan = split_finishes(plan)
    packed = _packed_scalars(plan)
    slots = _slots(plan, packed)
    prologue = Prologue(plan, packed, len(addresses))
    by_matrix = is_by_matrix(plan, *plan.phases)
    streams = [stream for sweep in plan.sweeps for stream in sweep.streams]
    local_names = list(dict.fromkeys(s.name for s in streams if s.role == "local"))
    fresh_keys = [state.key for state in plan.fresh_states()]
    scalar_types = prologue.scalar_types()
    table_rows = [*addresses, *scalar_types, *fresh_keys, *local_names]
    printer = Kernels(plan, table_rows, scalar_types, local_names, packed, slots, by_matrix)
    kernels = list(_kernels(plan, printer))
    facts = [fact if holds else f"not_{fact}" for fact, holds in plan.facts.items()]
    prologue_lines = prologue.lines()
    return {
        "prefix": "_".join([plan.algorithm.module, *facts]),
        "suffix": "_".join(facts),
        "facts": tuple(plan.facts.values()),
        "by_matrix": by_matrix,
        "scalars": packed.count,
        "scalar_types": scalar_types,
        "hyper_count": prologue.hyper_count,
        "prologue": prologue_lines,
        "prologue_doc": prologue.doc(),
        "may_scale_loss": True,
        "prologue_entry": uses("entry", "\n".join(prologue_lines)),
        "prologue_hypers": uses("hyper", "\n".join(prologue_lines)),
        "prologue_shapes": uses("shape", "\n".join(prologue_lines)),
        "kernels": kernels,
        "workspace": _workspace_sizes(kernels, slots)
        | {"draws": plan.algorithm.has_random_ops, "locals": tuple(local_names)},
    }


def _workspace_sizes(kernels: Sequence[Context], slots: Slots) -> dict[str, int]:
    """Return the numbers of small values and partial sums for which a workspace has room."""
    sweeps = [kernel for kernel in kernels if kernel["kind"] == "sweep"]
    sizes = {f"{axes.name.lower()}_values": slots.counts[axes] for axes in SMALL_VALUE_AXES}
    for key in ("sums", "row_sums", "column_sums"):
        sizes[key] = max(len(sweep[key]) for sweep in sweeps)
    sizes["parts"] = sum(kernel.get("partial_sum_count", 0) for kernel in kernels)
    return sizes


def _packed_scalars(plan: Plan) -> PackedScalars:
    bodies = [p.body for p in plan.phases if isinstance(p, Sweep | Finish)]
    streams = [s for sweep in plan.sweeps for s in sweep.streams]
    numbers = [variable(r.name) for r in _passed_values(plan) if plan.kinds[r].axes is Axes.NONE]
    return PackedScalars(plan, bodies, streams, dict.fromkeys(numbers))


def _slots(plan: Plan, packed: PackedScalars) -> Slots:
    values = list(_passed_values(plan))
    for phase in plan.phases:
        if isinstance(phase, Finish):
            printer = FinishPrinter(plan, phase, packed, allocate_slots(plan, ()))
            values += printer.values_read_by_later_loops()
    return allocate_slots(plan, values)


def _passed_values(plan: Plan) -> Iterator[Ref]:
    """Yield small values that one kernel computes and another reads.

    A sweep's sum is known only in the next finish, which combines the partial sums.
    """
    for i, phase in enumerate(plan.phases):
        sums = partial_sums(plan, phase) if isinstance(phase, Finish) else ()
        partial_targets = {a.target for a in sums}
        for ref in names_computed_by(phase):
            is_sum = isinstance(phase, Sweep) or ref in partial_targets
            first_reader = i + 2 if is_sum else i + 1
            if any(ref in names_read_by(p) for p in plan.phases[first_reader:]):
                yield ref


def _kernels(plan: Plan, kernels: Kernels) -> Iterator[Context]:
    """Yield the template's variables of each phase.

    The first sweep that reads the gradient also divides it by the loss scale.
    """
    sweep_numbers, finish_numbers, fold_numbers = count(1), count(1), count(1)
    is_unscaled = False
    for i, phase in enumerate(plan.phases):
        if isinstance(phase, Sweep):
            reads_grad = any(s.role == "grad" for s in used_streams(phase))
            context = kernels.sweep(phase, unscales=reads_grad and not is_unscaled)
            yield context | {"number": next(sweep_numbers)}
            is_unscaled |= reads_grad
            if context["sums"]:
                yield _fold(context["sums"]) | {"number": next(fold_numbers)}
        elif isinstance(phase, Finish):
            previous_phase = plan.phases[i - 1] if i else None
            yield FinishKernel(kernels, phase, previous_phase).context() | {
                "number": next(finish_numbers)
            }
            if sums := [reduction_context(a) for a in partial_sums(plan, phase)]:
                fold = _fold(sums, of_groups=True, first=first_part(plan, phase))
                yield fold | {"number": next(fold_numbers)}
        elif isinstance(phase, WideCall):
            yield kernels.wide_call(phase)
        else:
            yield kernels.matrix_call(phase)


def _fold(sums: Sequence[Context], of_groups: bool = False, first: int = 0) -> Context:
    """Return the template's variables of a kernel that folds partial sums from `first` on."""
    maxima = sum(each["is_maximum"] for each in sums)
    return {
        "kind": "fold",
        "sums": len(sums),
        "maxima": maxima,
        "of_groups": of_groups,
        "first": first,
    }
