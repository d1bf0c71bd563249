"""Predict how long a finish takes on an H100 that adds up many partial sums, from its machine code.

    python benchmarks/triton_finishes.py

A prediction, not a measurement: no kernel has run. LAMB's finish, whose programs add up two sums of
a tensor each, and the kernel that folds partial sums before it are compiled for sm_90. The table in
results/triton-finishes.json has the microseconds with and without the fold, by the number of
partial sums of a tensor. Latencies are those of `triton_aot_sass.py`, and partial sums are in the
L2 cache; one multiprocessor reads at most L2_BYTES from there in a clock cycle.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import triton

import optgen.optim
from benchmarks import triton_aot_sass
from benchmarks.triton_aot_compile import Case, compiling_for, folding, take_step
from benchmarks.triton_aot_sass import FROM_CACHE, Instruction, loops, run
from benchmarks.triton_model import H100
from optgen.runtime.fused_triton import folds

RECORD = Path(__file__).parent / "results" / "triton-finishes.json"
KERNELS = "lamb_finish1", "lamb_fold1"
COUNTS = [2**n for n in range(10, 20)]
L2_BYTES = 64
LAUNCH = 3.0
"""Microseconds of one more launch, as decision 0020 supposes."""


class Loop(NamedTuple):
    """A loop that loads partial sums."""

    cycles: int
    partials: int  # that a program loads each time

    def cycles_for(self, count: int) -> float:
        """Return the clock cycles for so many partial sums."""
        least = 8 * self.partials / L2_BYTES
        return count / self.partials * max(self.cycles, least)


class Costs(NamedTuple):
    """Clock cycles of a finish without its loops, those of a loop, and those of a fold."""

    finish: int
    loop: Loop
    fold: int  # all of its code: a whole chunk, and a masked one


def costs(cache: str) -> Costs:
    """Compile the kernels for sm_90."""
    with (
        folding(),
        mock.patch.object(triton_aot_sass, "FROM_MEMORY", FROM_CACHE),
        compiling_for("sm_90", cache) as launches,
    ):
        take_step(optgen.optim.LAMB, Case("sm_90"))
        finish, fold = (
            next(each.compiled for each in launches if each.name == name) for name in KERNELS
        )
        code, fold_code = (
            triton_aot_sass.read(triton_aot_sass.disassemble(each.asm["cubin"]))
            for each in (finish, fold)
        )
        once = run(triton_aot_sass.fast_path(code, 0)).cycles
        loop = first_loop(code, 32 * finish.metadata.num_warps)
        return Costs(once, loop, run(fold_code).cycles)


def first_loop(code: Sequence[Instruction], threads: int) -> Loop:
    """Return the first loop that loads partial sums."""
    for body in loops(code):
        loaded = sum(each.loaded_bytes for each in body)
        if loaded >= 8 * 8:
            return Loop(run(body).cycles, loaded // 8 * threads)
    raise ValueError("no loop loads partial sums")


def microseconds(count: int, costs: Costs) -> tuple[float, float]:
    """Return the time without a fold, and with it, for the two sums of a tensor."""

    def finish(number: int) -> float:
        return costs.finish + 2 * costs.loop.cycles_for(number)

    clock = H100.clock / 1e6
    chunks = -(-count // folds.FOLD)
    return finish(count) / clock, (costs.fold + finish(chunks)) / clock + LAUNCH


def main() -> None:
    """Predict, and write the record."""
    with TemporaryDirectory() as cache:
        found = costs(cache)
    rows = {n: [round(time, 1) for time in microseconds(n, found)] for n in COUNTS}
    head = {
        "what": "a prediction from machine code; no kernel has run",
        "triton": triton.__version__,
        "cycles": {"finish": found.finish, "loop": found.loop._asdict(), "fold": found.fold},
        "folded above": folds.WORTH_A_LAUNCH,
        "columns": ["partial sums of a tensor", "microseconds without a fold", "with a fold"],
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines += [f'"{count}": {json.dumps(row)}' for count, row in rows.items()]
    RECORD.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n", encoding="utf-8")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
