"""Measure all published figures on this machine's CPU, and keep them in a file.

    python benchmarks/cpu.py [--resume]
    python benchmarks/cpu.py --only AdamW --lists 1e6 --dtype bfloat16 --threads 1 --try

A *cell* is one measurement: a part of the suite, a class, a list of tensors, a dtype and a number
of threads. Without arguments the script measures all cells, merges each into
benchmarks/results/cpu.json, compares with the targets, draws the plot, and updates the summary in
the README. --resume skips cells that the file has, so a run can be interrupted. --try writes
nothing. --verdict measures nothing: it compares the file's results with the targets, draws them,
and updates the README.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import cpu_cells, cpu_targets
from benchmarks.cpu_summary import markdown
from benchmarks.cpu_targets import targets_of_machine, verdicts
from optgen.bench import report, results
from optgen.bench.measure import Budget
from optgen.bench.report import draw
from optgen.bench.suite import Suite
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import CLASSES
from optgen.cli.bench import is_memory_bound, traffic
from optgen.cli.catalogue import columns

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results" / "cpu.json"
MARKS = ("<!-- by benchmarks/cpu.py -->", "<!-- end -->")


def main() -> int:
    """Measure the requested cells, print them, and compare the file with the targets."""
    arguments = parse()
    cells = [] if arguments.verdict else requested_cells(arguments)
    if arguments.resume:
        known = results.load(arguments.out)
        cells = [cell for cell in cells if cell not in known]
    failed = run(cells, arguments)
    if not arguments.try_:
        compare_with_targets(arguments.out)
    return 1 if failed else 0


def run(cells: Sequence[results.Cell], arguments: argparse.Namespace) -> list[results.Cell]:
    """Measure cells, and return those that failed. A failure is printed, and the run goes on."""
    failed: list[results.Cell] = []
    measurements = Suite(traffic, Budget(arguments.seconds), parts=cpu_cells.PARTS)
    begin = time.perf_counter()
    for number, cell in enumerate(cells, 1):
        try:
            figures = measurements.run(cell)
        except Exception:
            traceback.print_exc()
            failed.append(cell)
            continue
        passed = time.perf_counter() - begin
        print(f"{passed:5.0f} s {number}/{len(cells)} {report.line(cell, figures)}", flush=True)
        if not arguments.try_:
            results.merge(arguments.out, {cell: figures})
    for cell in failed:
        print(f"failed: {cell}")
    return failed


def compare_with_targets(path: Path) -> None:
    """Compare the results in a file with the targets, draw them, and update the README.

    The README shows the figures of RESULTS, and is not changed for another file.
    """
    known, machine = results.load(path), results.machine_of(path)
    all_verdicts = verdicts(targets_of_machine(machine), known)
    print(columns(cpu_targets.verdict_table(all_verdicts)))
    print("\n".join(cpu_targets.missed_target_lines(all_verdicts)))
    draw(known, path.with_suffix(".png"))
    if path == RESULTS:
        README.write_text(with_summary(README.read_text(encoding="utf-8"), known), encoding="utf-8")


def with_summary(text: str, known: results.Results) -> str:
    """Return the README with a summary of these results between the two lines MARKS."""
    before, begin, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise ValueError(f"the README lacks the lines {' and '.join(MARKS)}")
    return f"{before}{begin}\n\n{markdown(known)}\n\n{end}{after}"


def requested_cells(arguments: argparse.Namespace) -> list[results.Cell]:
    """Return the published cells that the arguments select."""
    return [
        cell
        for cell in cpu_cells.published_cells(is_memory_bound)
        if cell.part in arguments.parts
        and cell.name in arguments.only
        and cell.tensors in arguments.lists
        and cell.dtype in arguments.dtype
        and cell.threads in arguments.threads
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = list(cpu_cells.PARTS)
    parser.add_argument("--parts", nargs="*", default=parts, choices=parts)
    parser.add_argument("--only", nargs="*", default=CLASSES, choices=CLASSES)
    parser.add_argument("--lists", nargs="*", default=list(LISTS), choices=list(LISTS))
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds to measure each cell")
    parser.add_argument("--resume", action="store_true", help="leave out cells that the file has")
    parser.add_argument("--try", dest="try_", action="store_true", help="write nothing")
    parser.add_argument("--verdict", action="store_true", help="only compare and draw")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
