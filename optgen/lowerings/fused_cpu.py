"""Plan -> C++: one call for all tensors, one loop over elements for each set of streams.

The loop is written once, for float and double and for every combination of the flags that decide
which streams there are; everything else that a rule branches on is one value for a whole tensor, and
left to the compiler to move out of the loop. What is not arithmetic stands in runtime/fused_cpu.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from optgen.ir.algorithm import Hyper
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.base import Lowering, planned
from optgen.lowerings.cpp_expressions import variable
from optgen.lowerings.cpp_program import ScalarProgram
from optgen.lowerings.cpp_sweep import SweepPrinter
from optgen.lowerings.cpp_text import folded, listed
from optgen.passes.fold_denominators import fold_denominators
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.share_divisors import share_divisors


def context(plan: Plan) -> Mapping[str, Any]:
    """What the template lays out."""
    (sweep,) = plan.sweeps
    program = ScalarProgram(plan)
    printer = SweepPrinter(plan, sweep, program)
    algorithm = plan.algorithm
    counted = ["STEP"] if algorithm.step else []
    cells = [*counted, *(s.key.upper() for s in algorithm.scalar_states())]
    streams = [s.name.upper() for s in sweep.streams]
    call = "variant" if printer.flags else "sweep"
    members = ["hypers", "scalars", "fresh", "n"]
    return {
        "algorithm": algorithm,
        "streams": listed("enum { ", [*streams, "STREAMS"], " };", 4),
        "cells": listed("enum { ", [*cells, "CELLS"], " };", 4),
        "hypers": listed("double ", map(_member, algorithm.hypers), ";", 8),
        "scalars": listed("double ", program.fields.values(), ";", 8) if program.fields else [],
        "program": program,
        "sweep": printer,
        "template": ", ".join(["class C", *(f"bool {flag}" for flag in printer.flags.values())]),
        "signature": listed("static void sweep(", _parameters(sweep.streams, printer), ") {", 4),
        "variants": _variants(printer.flags),
        "call": listed(f"{call}(", [*members, *(f"streams[{s}]" for s in streams)], ");", 8),
    }


LOWERING = Lowering(
    name="fused_cpu",
    filename="fused_cpu.cpp",
    template="fused_cpu.cpp.jinja",
    lower=planned((fold_denominators, share_divisors, hoist_scalars), context),
)


def _member(hyper: Hyper) -> str:
    name = variable(hyper.name)
    return f"{name}[{hyper.size}]" if hyper.sort == "tuple" else name


def _parameters(streams: Sequence[Stream], printer: SweepPrinter) -> list[str]:
    """The parameters of the sweep; what it does not read has no name."""
    given = {"const Hypers&": "hypers", "const Scalars&": "scalars", "unsigned": "fresh"}
    named = [f"{t} {name}" if printer.uses(name) else t for t, name in given.items()]
    lists = (
        f"{'' if stream.stored else 'const '}C* __restrict {variable(stream.name)}s"
        for stream in streams
    )
    return [*named, "i64 n", *lists]


def _variants(flags: Mapping[str, str]) -> list[str]:
    """The function to call: from a table by the truth of the flags, if there are any."""
    if not flags:
        return []
    arguments = ["C, " + ", ".join(row) for row in product(("false", "true"), repeat=len(flags))]
    before = f"constexpr decltype(&sweep<{arguments[0]}>) variants[] = {{"
    index = ""
    for name in flags:
        index = f"({index}) * 2 + " if " " in index else f"{index} * 2 + " if index else ""
        index += f"truth(hypers.{variable(name)})"
    lines = listed(before, [f"sweep<{a}>" for a in arguments], "};", 8)
    return [*lines, *folded(f"const auto variant = variants[{index}];", 8)]
