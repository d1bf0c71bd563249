"""Lower to C++: one call updates all tensors of all groups.

Each loop is a template on the storage dtype and on the flags that decide which streams exist. All
other conditions of branches are uniform over a tensor. In a loop over SIMD vectors they become
branches, taken once per vector; in a loop that the compiler vectorizes, they become selects. Code
that is equal for all rules is in headers in runtime/fused_cpu/include: elementwise_kernel.h for
elementwise rules, phased_kernel.h for rules with phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from optgen.contract.states import Shape
from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.kinds import Axes
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu.cpp_text import (
    comment,
    constant,
    declarations,
    indented_blocks,
    variable,
    wrapped_list,
)
from optgen.lowerings.fused_cpu.loop_printer import ElementwiseLoop
from optgen.lowerings.fused_cpu.phased_file import phased_context
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram
from optgen.lowerings.lowering import Context, Lowering
from optgen.passes import all_passes
from optgen.passes.plan_rule import plan, plans, run_own, why_uncut
from optgen.passes.prepare_for_kernels import (
    is_one_sweep,
    legend_of_choices,
    load_device_scalars,
)
from optgen.passes.prepare_rule import specialize_unit_matrices
from optgen.passes.recognize_rules import codes_readers, is_scatter_add

_AXES_OF_SHAPE: dict[Shape, Axes] = {"like": Axes.TENSOR, "row": Axes.ROW, "col": Axes.COLUMN}


def lower(algorithm: Algorithm) -> Context:
    """Return the variables of the templates, as indented blocks of text."""
    algorithm = load_device_scalars(algorithm)
    all_plans = [run_own(all_passes.FUSED_CPU, each) for each in _plans(algorithm)]
    symbols = {state.key: state.symbol for plan in all_plans for state in plan.fresh_states()}
    fresh_symbols = [symbols[state.key] for state in algorithm.states if state.key in symbols]
    streams = _streams(algorithm, all_plans)
    names = wrapped_list("enum { ", [*map(constant, streams), "STREAMS"], " };", column=4)
    blocks = {  # each with its indentation depth
        "streams": (1, [*names, *_read_only_mask(all_plans[0].algorithm)]),
        "scatter_adds": (1, _scatter_adds(algorithm)),
        "codes": (1, _block_codes(all_plans[0].algorithm, streams)),
        "cells": (1, wrapped_list("enum { ", [*_cells(all_plans[0]), "CELLS"], " };", column=4)),
        "hypers": (2, _hyper_lines(all_plans[0].algorithm.hypers)),
    }
    return {
        "algorithm": algorithm,
        "about": comment(algorithm.doc.strip().splitlines()[0]) if algorithm.doc else "",
        **indented_blocks(blocks),
        **(
            _one_sweep_context(all_plans[0], fresh_symbols)
            if len(all_plans) == 1 and is_one_sweep(all_plans[0])
            else phased_context(all_plans, streams, fresh_symbols)
        ),
    }


FUSED_CPU = Lowering(
    name="fused_cpu",
    filename="fused_cpu.cpp",
    template="fused_cpu.cpp.jinja",
    lower=lower,
    refusal=why_uncut,
)


def _plans(algorithm: Algorithm) -> Iterator[Plan]:
    """Yield a plan for each set of facts.

    A rule with rows or columns, but no matrix op, also gets a plan for 1 x 1 matrices. A rule with
    a matrix op that nothing reads may have no such plan.
    """
    special = specialize_unit_matrices(algorithm)
    for general in plans(algorithm):
        axes = {kind.axes for kind in general.kinds.values()}
        has_lines = not axes.isdisjoint({Axes.ROW, Axes.COLUMN})
        if not has_lines or general.matrix_calls or why_uncut(special):
            yield general
            continue
        unit_matrices = plan(special, general.facts)
        yield replace(general, facts={**general.facts, "one_by_one": False})
        yield replace(unit_matrices, facts={**general.facts, "one_by_one": True})


def _streams(algorithm: Algorithm, all_plans: list[Plan]) -> dict[str, Axes]:
    """Return the streams, in the order of the table of their addresses, each with its axes."""
    first = all_plans[0].algorithm
    symbols = {s.key: s.symbol for plan in all_plans for s in plan.algorithm.states}
    states = {
        symbols[s.key]: _AXES_OF_SHAPE[s.shape] for s in algorithm.states if s.shape != "scalar"
    }
    matrix_operands = {
        s.name: Axes.TENSOR
        for plan in all_plans
        for sweep in plan.sweeps
        for s in sweep.streams
        if s.role == "local"
    }
    return {first.param: Axes.TENSOR, first.grad: Axes.TENSOR, **states, **matrix_operands}


def _read_only_mask(algorithm: Algorithm) -> list[str]:
    """Declare the mask of read-only streams, unless it is the default: only the gradient."""
    grad = () if algorithm.zero_grad else (algorithm.grad,)
    names = (*grad, *(state.symbol for state in algorithm.tensor_states() if not state.written))
    if names == (algorithm.grad,):
        return []
    bits = [f"1 << {constant(name)}" for name in names]
    return [f"static constexpr u32 READ_ONLY = {' | '.join(bits) or '0'};"]


def _block_codes(algorithm: Algorithm, streams: Iterable[str]) -> list[str]:
    """Declare the block size and code map of each stream, if kernels read codes."""
    if not codes_readers(algorithm):
        return []
    no_codes = "{0, DYNAMIC}"
    states = {s.symbol: s for s in algorithm.states if s.is_quantized}
    items = [
        f"{{{states[name].block}, {states[name].map.upper()}}}" if name in states else no_codes
        for name in streams
    ]
    return wrapped_list("static constexpr BlockCodes CODES[STREAMS] = {", items, "};", column=4)


def _scatter_adds(algorithm: Algorithm) -> list[str]:
    """Declare SCATTER_ADDS if a kernel may add the values of a sparse gradient one by one."""
    return ["static constexpr bool SCATTER_ADDS = true;"] if is_scatter_add(algorithm) else []


def _cells(plan: Plan) -> list[str]:
    """Return the names of the cells, which hold the step count and scalar states of a parameter."""
    scalar = [constant(s.symbol) for s in plan.algorithm.scalar_states()]
    return ["STEP", *scalar] if plan.algorithm.step else scalar


def _one_sweep_context(plan: Plan, fresh_symbols: list[str]) -> Context:
    """Return the template's variables for a rule of one sweep."""
    (sweep,) = plan.sweeps
    program = ScalarProgram(plan, fresh_symbols)
    printer = ElementwiseLoop(plan, sweep, program)
    blocks = {  # each with its indentation depth
        "scalars": (2, declarations("double", program.fields.values(), column=8)),
        "program": (2, program.lines()),
        "sweep": (1, printer.definition()),
        "call": (2, printer.call()),
    }
    return {
        "form": "fused_cpu_elementwise.cpp.jinja",
        "header": "elementwise_kernel.h",
        "reads_sizes": str(program.reads_sizes).lower(),
        "inputs": ", ".join(program.parameters()),
        **indented_blocks(blocks),
    }


def _hyper_lines(hypers: Sequence[Hyper]) -> list[str]:
    """Return the members of `Hypers`, after a legend for each hyperparameter that is a choice."""
    legends = map(comment, filter(None, map(legend_of_choices, hypers)))
    return [*legends, *declarations("double", map(_member, hypers), column=8)]


def _member(hyper: Hyper) -> str:
    """Return the declarator of a hyperparameter: a name, or an array of the tuple's size."""
    name = variable(hyper.name)
    return f"{name}[{hyper.size}]" if hyper.type == "tuple" else name
