"""Compile every Triton kernel of the catalogue ahead of time for three GPUs, and record figures.

    python benchmarks/triton_aot.py [--jobs N]

It compiles each kernel for each target and each set of dtypes, with and without optional states,
and with and without a gradient scaler. It writes registers per thread and shared memory to
results/triton-registers.json. It exits with 1 if a kernel spills, rounds inexactly, or accesses a
whole block in less than 16 bytes at a time. The tests compile the same kernels, and allow SLACK
more registers than recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import triton

import optgen.optim
from benchmarks.triton_aot_compile import TARGETS, TYPES, Case, figures_of, flags_of
from optgen.generated.row_wise_adagrad import RowWiseAdagrad
from optgen.runtime.rule import Rule

RECORD = Path(__file__).parent / "results" / "triton-registers.json"
SLACK = 8
"""Registers that a kernel may use beyond the record, because assemblers differ."""

Entries = dict[str, dict[str, list[int]]]
"""Registers of a thread and shared bytes of a block, by target and by a case's entry name."""


def classes() -> dict[str, Any]:
    """Return one class for each file of kernels. AdamW uses Adam's file."""
    by_folder: dict[str, Any] = {}
    for cls in (*(getattr(optgen.optim, name) for name in optgen.optim.__all__), RowWiseAdagrad):
        if isinstance(getattr(cls, "rule", None), Rule):
            by_folder.setdefault(cls.lowerings, cls)
    return {cls.__name__: cls for cls in by_folder.values()}


def cases(cls: Any, target: str) -> Iterator[Case]:
    """Yield every case in which the kernels of a class are compiled for a target."""
    flags = (False, True) if flags_of(cls) else (False,)
    yield from (Case(target, *case) for case in product(TYPES, flags, (False, True)))


def entry_name(case: Case) -> str:
    """Return the name under which a case is recorded for its target."""
    parts = [case.types, "flags" if case.flags else "", "scaled" if case.scaled else ""]
    return " ".join(filter(None, parts))


def compile_class(name: str, case: Case, cache: str) -> tuple[dict[str, list[int]], list[str]]:
    """Return `[registers, shared bytes]` of each kernel of a class, and a line for each fault."""
    by_kernel = figures_of(classes()[name], case, cache)
    faults = [
        f"{kernel}, {case.target} {entry_name(case)}: {figures}"
        for kernel, figures in by_kernel.items()
        if figures.spilled_bytes or figures.inexact_instructions or not figures.has_widest_accesses
    ]
    return {kernel: [f.registers, f.shared_bytes] for kernel, f in by_kernel.items()}, faults


def main() -> int:
    """Compile everything, write the record, and print faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    record: dict[str, Entries] = {}
    faults: list[str] = []
    tasks = [
        (name, case)
        for name, target in product(classes(), TARGETS)
        for case in cases(classes()[name], target)
    ]
    with TemporaryDirectory() as cache, ProcessPoolExecutor(parser.parse_args().jobs) as pool:
        runs = [(case, pool.submit(compile_class, name, case, cache)) for name, case in tasks]
        for number, (case, run) in enumerate(runs, 1):
            by_kernel, class_faults = run.result()
            for kernel, figures in by_kernel.items():
                record.setdefault(kernel, {}).setdefault(case.target, {})[entry_name(case)] = (
                    figures
                )
            faults += class_faults
            if sys.stderr.isatty():
                print(f"\r{number} of {len(runs)}", end="", file=sys.stderr, flush=True)
    write(record)
    total = sum(len(of_target) for entries in record.values() for of_target in entries.values())
    print(f"{total} kernels, {len(faults)} of them wrong", *faults, sep="\n")
    return 1 if faults else 0


def write(record: dict[str, Entries]) -> None:
    """Write a line for each kernel and target, so that diffs are readable."""
    head = {"triton": triton.__version__, "entries": "registers of a thread, bytes of a block"}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for kernel, targets in sorted(record.items()):
        inner = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in targets.items())
        lines.append(f"{json.dumps(kernel)}: {{\n{inner}\n  }}")
    RECORD.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
