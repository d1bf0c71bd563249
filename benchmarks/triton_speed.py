"""Predict how fast each Triton sweep of the catalogue is on an H100, from its machine code.

    python benchmarks/triton_speed.py [--only CLASS …] [--jobs N]

With --only, the predictions of other classes stay as they are recorded.
A prediction, not a measurement: no kernel has run. Each sweep is compiled for sm_90. It writes to
results/triton-speed.json the fraction of the speed of a copy that a sweep of large tensors reaches,
if nothing limits it but the latency of a block (with as many blocks at once as registers, threads
and shared memory allow) and the slots in which instructions issue. Exits with 1 if a sweep is below
ENOUGH and EXPLAINED says nothing about it.

The model is rough: latencies are fixed, real kernels reach 70 to 80 percent of the issue slots, and
nothing is known of banks, of the caches' bandwidth and of the tail of a launch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import triton

import optgen.optim
from benchmarks import triton_aot_compile, triton_aot_sass
from benchmarks.gpu_report import ENOUGH
from benchmarks.triton_aot import classes
from benchmarks.triton_aot_assembly import block_accesses, bytes_per_element, resources
from benchmarks.triton_aot_compile import Case, Launch, compiling_for, take_step
from optgen.optim._published import PUBLISHED
from optgen.verification.patch_attribute import patch_attribute

RECORD = Path(__file__).parent / "results" / "triton-speed.json"
TARGET = "sm_90"
TYPES = ("float32", "bfloat16")
SHAPES = {"": ((512, 512), (5000,)), "in three tile shapes": triton_aot_compile.SHAPES}
"""The shapes of parameters, by what they are called. Large matrices alone have one tile shape."""
_NARROW = (
    "tiles of 16-bit elements move half the bytes in the same time; tiles of 4096 elements would "
    "reach 0.8 to 1, but the kernels of several tile shapes then spill up to 680 bytes"
)
EXPLAINED = {" bfloat16": _NARROW}
"""Reasons of sweeps below ENOUGH, by a part of their names."""


def catalogue() -> dict[str, Any]:
    """Return one class for each file of kernels: torch's rules, and the published ones."""
    published = {name: getattr(optgen.optim, name) for name in PUBLISHED.values()}
    return classes() | {name: cls for name, cls in published.items() if not cls.rule.why_uncut}


class Card(NamedTuple):
    """The limits of a card. The figures are those of an H100 (SXM)."""

    multiprocessors: int = 132
    clock: float = 1.755e9  # Hz
    copy: float = 3.0e12  # bytes per second, read and written, of a copy; measured on such a card
    registers: int = 65536
    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 227 * 1024
    schedulers: int = 4

    @property
    def copied_per_clock(self) -> float:
        """The bytes that a multiprocessor copies in a clock cycle."""
        return self.copy / self.multiprocessors / self.clock

    def resident_blocks(self, registers: int, warps: int, shared_bytes: int) -> int:
        """Return how many blocks of a kernel a multiprocessor holds."""
        registers_per_warp = -(-registers * 32 // 256) * 256
        return min(
            self.registers // (registers_per_warp * warps),
            self.threads // (32 * warps),
            self.shared_bytes // (shared_bytes + 1024),
            self.blocks,
        )


H100 = Card()


class Prediction(NamedTuple):
    """The prediction for one sweep."""

    fraction: float  # of a copy's speed
    limit: str  # "memory", "latency" or "issue"
    registers: int
    resident_blocks: int
    loading_kib: float  # bytes of loads in flight on a multiprocessor
    cycles: int  # of one block
    instructions: int  # of one warp


def predict(launch: Launch, card: Card = H100) -> Prediction | None:
    """Return the prediction for a launch; None if the kernel is no sweep."""
    compiled, options = launch.compiled, launch.options
    read, written = bytes_per_element(compiled.asm["ttir"], options)
    if not read:
        return None
    accesses = list(block_accesses(compiled.asm["ttir"], options))
    elements = max(prod(a.extent) for a in accesses)
    warps = compiled.metadata.num_warps
    code = triton_aot_sass.read(triton_aot_sass.disassemble(compiled.asm["cubin"]))
    widest = max(a.itemsize for a in accesses if a.kind == "load")
    wide_loads = sum(
        prod(a.extent) * a.itemsize // 16
        for a in accesses
        if (a.kind, a.itemsize) == ("load", widest)
    )
    paths = len(options.get("TILES", ())) or 1
    wanted = wide_loads // paths // (32 * warps)
    path = triton_aot_sass.run(triton_aot_sass.fast_path(code, wanted))
    registers = resources(compiled.asm["cubin"])["REG"]
    blocks = card.resident_blocks(registers, warps, compiled.metadata.shared)
    moved = (read + written) * elements
    slots = (path.instructions + path.double_precision) * warps / card.schedulers
    by_limit = {
        "memory": 1.0,
        "latency": blocks * moved / path.cycles / card.copied_per_clock,
        "issue": moved / slots / card.copied_per_clock,
    }
    limit = min(by_limit, key=by_limit.__getitem__)
    loading = blocks * read * elements / 1024
    return Prediction(
        round(by_limit[limit], 2),
        limit,
        registers,
        blocks,
        round(loading, 1),
        path.cycles,
        path.instructions,
    )


def predictions(name: str, shapes: str, types: str, cache: str) -> dict[str, Prediction]:
    """Return the predictions for all sweeps of a class, by the kernel's name and case."""
    with (
        patch_attribute(triton_aot_compile, "SHAPES", SHAPES[shapes]),
        compiling_for(TARGET, cache) as launches,
    ):
        take_step(catalogue()[name], Case(TARGET, types))
    found = {}
    for launch in launches:
        if shapes and len(launch.options.get("TILES", ())) < 2:
            continue  # the same kernel as for one shape
        if prediction := predict(launch):
            found[" ".join(filter(None, (launch.name, types, shapes)))] = prediction
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Predict everything, write the record, and print what is slow."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="CLASS")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args(argv)
    found: dict[str, Prediction] = {}
    with TemporaryDirectory() as cache, ProcessPoolExecutor(arguments.jobs) as pool:
        names = arguments.only or list(catalogue())
        tasks = product(names, SHAPES, TYPES, [cache])
        for some in pool.map(predictions, *zip(*tasks, strict=True)):
            found |= some
            print(*(f"{n}: {p}" for n, p in some.items()), sep="\n", flush=True)
    write({**recorded(), **found} if arguments.only else found)
    slow = {name: p for name, p in found.items() if p.fraction < ENOUGH}
    unexplained = [name for name in slow if not explanation(name)]
    print(
        f"{len(found)} sweeps, {len(slow)} below {ENOUGH}, {len(unexplained)} of them unexplained"
    )
    print(*(f"  {name}: {slow[name]}" for name in unexplained), sep="\n")
    return 1 if unexplained else 0


def explanation(name: str) -> str:
    """Return why a sweep is slow, if somebody has found out."""
    return next((why for part, why in EXPLAINED.items() if part in name), "")


def recorded() -> dict[str, Prediction]:
    """Return the predictions of earlier runs."""
    rows = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    width = len(Prediction._fields)
    return {
        name: Prediction(*row[:width])
        for name, row in rows.items()
        if isinstance(row, list) and name != "columns"
    }


def write(found: dict[str, Prediction]) -> None:
    """Write a line for each sweep, slowest first."""
    head: dict[str, Any] = {
        "what": "a prediction from machine code; no kernel has run",
        "triton": triton.__version__,
        "card": H100._asdict(),
        "columns": [*Prediction._fields, "why, if below enough"],
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    rows = sorted(found.items(), key=lambda item: (item[1].fraction, item[0]))
    lines += [f"{json.dumps(name)}: {json.dumps(list(columns(name, p)))}" for name, p in rows]
    RECORD.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n", encoding="utf-8")


def columns(name: str, prediction: Prediction) -> Iterator[Any]:
    """Yield the columns of a row."""
    yield from prediction
    if prediction.fraction < ENOUGH:
        yield explanation(name)


if __name__ == "__main__":
    sys.exit(main())
