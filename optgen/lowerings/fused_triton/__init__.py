"""Lower to Triton: a prologue kernel in float64, and a kernel for each sweep and each finish.

The prologue is the scalar program. It packs the scalars that the phases read, in one array
per tensor. An elementwise rule has one sweep and no finish. A flag that decides which streams exist
is a constexpr. Every other condition is one of the packed scalars, so no value of a hyperparameter
causes a recompilation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes
from optgen.ir.nodes import Ref
from optgen.ir.plan import Finish, Plan, Sweep, WideCall
from optgen.lowerings.fused_triton.address_printer import UsedNames
from optgen.lowerings.fused_triton.expression_printer import variable
from optgen.lowerings.fused_triton.finishes import FinishKernel, FinishPrinter
from optgen.lowerings.fused_triton.prologue import PackedScalars, Prologue
from optgen.lowerings.fused_triton.sweeps import (
    ARGUMENTS,
    FINISH_ARGUMENTS,
    WORKSPACE_ARGUMENTS,
    Kernels,
    reduction_context,
    used_streams,
)
from optgen.lowerings.fused_triton.workspace_slots import (
    SMALL_VALUE_AXES,
    Slots,
    allocate_slots,
    is_by_matrix,
    names_computed_by,
    names_read_by,
)
from optgen.lowerings.lowering import Lowering
from optgen.passes.all_passes import FUSED_TRITON as TRITON_PASSES
from optgen.passes.plan_rule import target_plans
from optgen.passes.prepare_for_kernels import load_device_scalars
from optgen.passes.recognize_rules import why_not_in_triton
from optgen.passes.split_finishes import (
    first_part,
    partial_sums,
)

Context = dict[str, Any]


def lower(algorithm: Algorithm) -> Mapping[str, Any]:
    """Return the variables of the file's template."""
    algorithm = load_device_scalars(algorithm)
    keys = [state.key for state in algorithm.states if state.shape != "scalar"]
    contexts = [_plan_context(plan, keys) for plan in target_plans(algorithm, TRITON_PASSES)]
    return {
        "algorithm": algorithm,
        "may_skip": not (
            algorithm.is_function and algorithm.elementwise
        ),  # a gradient scaler skips
        "plans": contexts,
        "reduces_over_parameters": any(
            kernel["kind"] == "wide" for plan in contexts for kernel in plan["kernels"]
        ),
        "launches_doc": _launches_in_title(contexts),
        "arguments": ARGUMENTS,
        "finish_arguments": FINISH_ARGUMENTS,
        "scalars": max(plan["scalars"] for plan in contexts),
    }


FUSED_TRITON = Lowering(
    name="fused_triton",
    filename="fused_triton.py",
    template="fused_triton.py.jinja",
    lower=lower,
    refusal=why_not_in_triton,
)


def _plan_context(plan: Plan, keys: Sequence[str]) -> Context:
    """Return the template's variables for one plan: its kernels, and their workspace.

    `keys` has the keys of the streamed states of all plans, as the bucket's table has them.
    """
    algorithm, packed = plan.algorithm, _packed_scalars(plan)
    slots = _slots(plan, packed)
    rows = {algorithm.param: 0, algorithm.grad: 1}  # of the bucket's table
    rows |= {s.symbol: 2 + keys.index(s.key) for s in algorithm.states if s.key in keys}
    stream_count = 2 + len(keys)
    prologue = Prologue(plan, packed, stream_count)
    by_matrix = is_by_matrix(plan, *plan.phases)
    has_finish = any(isinstance(phase, Finish | WideCall) for phase in plan.phases)
    in_phases = by_matrix or prologue.reads_shapes or has_finish
    streams = [stream for sweep in plan.sweeps for stream in sweep.streams]
    local_names = list(dict.fromkeys(s.name for s in streams if s.role == "local"))
    fresh_flags = [f"fresh_{state.key}" for state in plan.fresh_states()]
    scalar_types = prologue.scalar_types()
    others = enumerate([*scalar_types, *fresh_flags, *local_names], stream_count)
    rows |= {name: row for row, name in others}
    printer = Kernels(
        plan, rows, stream_count, scalar_types, local_names, packed, slots, by_matrix, in_phases
    )
    kernels = list(_kernels(plan, printer))
    kinds = [kernel["kind"] for kernel in kernels]
    workspace = {
        "in_phases": in_phases,
        "by_matrix": by_matrix,
        **_workspace_sizes(kernels, slots),
        "draws": algorithm.has_random_ops,
        "locals": tuple(local_names),
    }
    facts = [fact if holds else f"not_{fact}" for fact, holds in plan.facts.items()]
    return {
        "prefix": "_".join([algorithm.stem, *facts]),
        "suffix": "_".join(facts),
        "facts": tuple(plan.facts.values()),
        "in_phases": in_phases,
        "by_matrix": by_matrix,
        "scalars": packed.count,
        "scalar_types": scalar_types,
        "prologue": prologue.lines(),
        "prologue_doc": prologue.doc(),
        "has_prologue": prologue.computes,
        "prologue_shapes": prologue.reads_shapes,
        "sweeps_share": any(
            name in WORKSPACE_ARGUMENTS
            for kernel in kernels
            if kernel["kind"] == "sweep"
            for name in kernel["arguments"]
        ),
        "has_finish": any(kind in ("finish", "finish_matrices") for kind in kinds),
        "launches": _launches(kinds, prologue.computes),
        "kernels": kernels,
        "workspace": ", ".join(
            [
                f"scalars={'SCALARS.value' if packed.count else 0}",
                *(f"{k}={v}" for k, v in workspace.items() if v),
            ]
        ),
    }


def _launches(kinds: Sequence[str], has_prologue: bool) -> str:
    """Return what a step launches, in English."""
    sweeps = "the sweeps" if kinds.count("sweep") > 1 else "the sweep"
    parts = [*(["the scalar program"] if has_prologue else []), sweeps]
    parts += ["the finishes"] if any(kind.startswith("finish") for kind in kinds) else []
    parts += ["the matrix ops"] if "call" in kinds else []
    *others, last = parts
    return f"{', '.join(others)} and {last}, each" if others else last


def _launches_in_title(plans: Sequence[Context]) -> str:
    """Return which launches a step makes, for the first line of a file."""
    if any(len(plan["kernels"]) > 1 for plan in plans):
        return "launches for scalars, for each sweep, and for what lies between sweeps"
    if any(plan["has_prologue"] for plan in plans):
        return "one launch for scalars, and one for elements"
    return "one launch"


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
            printer = FinishPrinter(plan, phase, packed, allocate_slots(plan, ()), UsedNames())
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
    finish_numbers, fold_numbers = count(1), count(1)
    sweep_numbers: Iterator[int | str] = count(1) if len(plan.sweeps) > 1 else iter([""])
    is_unscaled = plan.algorithm.is_function  # its lists have no gradients
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
