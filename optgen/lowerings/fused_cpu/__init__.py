"""Plan -> C++: one call for all tensors, one loop over elements for each set of streams.

The loop is written once, for float and double and for every combination of the flags that decide
which streams there are. Whatever else a rule branches on is one value for a whole tensor, and the
compiler moves such a branch out of the loop. What is not arithmetic stands in the header,
runtime/fused_cpu/kernel.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from optgen.ir.algorithm import Hyper
from optgen.ir.plan import Plan, Sweep
from optgen.ir.variables import plural
from optgen.lowerings.base import Lowering, planned
from optgen.lowerings.fused_cpu.expressions import constant, variable
from optgen.lowerings.fused_cpu.program import ScalarProgram
from optgen.lowerings.fused_cpu.sweep import SweepPrinter
from optgen.lowerings.fused_cpu.text import comment, declared, indented, listed
from optgen.passes.fold_denominators import fold_denominators
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.join_roots import join_roots
from optgen.passes.number_choices import number_choices
from optgen.passes.share_divisors import share_divisors
from optgen.passes.take_differences import take_differences

_PASSES = (
    number_choices,
    take_differences,
    join_roots,
    fold_denominators,
    share_divisors,
    hoist_scalars,
)


def context(plan: Plan) -> Mapping[str, Any]:
    """What the template lays out: every block of text at its place."""
    (sweep,) = plan.sweeps
    program = ScalarProgram(plan)
    printer = SweepPrinter(plan, sweep, program)
    algorithm = plan.algorithm
    streams = [constant(s.name) for s in sweep.streams]
    cells = ["STEP"] * bool(algorithm.step) + [
        constant(s.symbol) for s in algorithm.scalar_states()
    ]
    blocks = {
        "streams": (1, listed("enum { ", [*streams, "STREAMS"], " };", 4)),
        "cells": (1, listed("enum { ", [*cells, "CELLS"], " };", 4)),
        "hypers": (2, declared("double", map(_member, algorithm.hypers), 8)),
        "scalars": (2, declared("double", program.fields.values(), 8)),
        "program": (2, program.lines()),
        "parameters": (1, listed("static void sweep(", _parameters(sweep, printer), ") {", 4)),
        "constants": (2, printer.constants()),
        "loads": (3, printer.loads()),
        "body": (3, printer.body),
        "stores": (3, printer.stores()),
        "call": (2, _call(streams, printer.flags)),
    }
    return {
        "algorithm": algorithm,
        "about": comment(algorithm.doc.strip().splitlines()[0]) if algorithm.doc else "",
        "inputs": ", ".join(program.parameters()),
        "template": ", ".join(["class C", *(f"bool {flag}" for flag in printer.flags.values())]),
        **{name: "\n".join(indented(lines, depth)) for name, (depth, lines) in blocks.items()},
    }


FUSED_CPU = Lowering(
    name="fused_cpu",
    filename="fused_cpu.cpp",
    template="fused_cpu.cpp.jinja",
    lower=planned(_PASSES, context),
    elementwise_only=True,
)


def _member(hyper: Hyper) -> str:
    name = variable(hyper.name)
    return f"{name}[{hyper.size}]" if hyper.sort == "tuple" else name


def _parameters(sweep: Sweep, printer: SweepPrinter) -> list[str]:
    """The parameters of the sweep; what it does not read has no name."""
    given = {"hypers": "const Hypers&", "scalars": "const Scalars&", "fresh": "unsigned"}
    lists = (
        f"{'' if stream.stored else 'const '}C* __restrict {variable(plural(stream.name))}"
        for stream in sweep.streams
    )
    named = (f"{kind} {name}" if printer.uses(name) else kind for name, kind in given.items())
    return [*named, "i64 n", *lists]


def _call(streams: list[str], flags: Mapping[str, str]) -> list[str]:
    """Call the sweep, in the variant that the truth of the flags asks for."""
    arguments = ["hypers", "scalars", "fresh", "n", *(f"streams[{name}]" for name in streams)]
    if not flags:
        return listed("sweep(", arguments, ");", 8)
    variants = [f"sweep<C, {', '.join(v)}>" for v in product(("false", "true"), repeat=len(flags))]
    index = ""
    for name in flags:
        truth = f"truth(hypers.{variable(name)})"
        index = f"2 * {f'({index})' if ' ' in index else index} + {truth}" if index else truth
    before = f"constexpr decltype(&{variants[0]}) variants[] = {{"
    return [*listed(before, variants, "};", 8), *listed(f"variants[{index}](", arguments, ");", 8)]
