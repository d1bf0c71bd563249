"""Compile every Triton kernel of the catalogue ahead of time for three GPUs, and record figures.

    python benchmarks/triton_aot.py [--only CLASS …] [--jobs N]

It compiles each kernel for each target and each set of dtypes, with and without optional states,
and with and without a gradient scaler. It writes registers per thread and shared memory to
results/triton-registers.json. It exits with 1 if a kernel spills, rounds inexactly, or accesses a
whole block in less than 16 bytes at a time. The record is written after each class; with --only,
other classes stay as they are recorded. The tests compile the same kernels, and allow SLACK
more registers than recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
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


def main(argv: Sequence[str] | None = None) -> int:
    """Compile everything, write the record after each class, and print faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="CLASS", help="other classes stay recorded")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args(argv)
    record = recorded() if arguments.only else {}
    faults: list[str] = []
    with TemporaryDirectory() as cache, ProcessPoolExecutor(arguments.jobs) as pool:
        for name in arguments.only or classes():
            tasks = [case for target in TARGETS for case in cases(classes()[name], target)]
            found: dict[str, Entries] = {}
            runs = [(case, pool.submit(compile_class, name, case, cache)) for case in tasks]
            for case, run in runs:
                by_kernel, class_faults = run.result()
                for kernel, figures in by_kernel.items():
                    by_case = found.setdefault(kernel, {}).setdefault(case.target, {})
                    by_case[entry_name(case)] = figures
                faults += class_faults
            record |= found
            write(record)
            print(f"{name}: {len(found)} kernels", flush=True)
    total = sum(len(of_target) for entries in record.values() for of_target in entries.values())
    print(f"{total} kernels, {len(faults)} of them wrong", *faults, sep="\n")
    return 1 if faults else 0


def recorded() -> dict[str, Entries]:
    """Return the figures of earlier runs."""
    rows = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return {kernel: entries for kernel, entries in rows.items() if isinstance(entries, dict)}


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
