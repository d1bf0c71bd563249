"""All figures of this machine's CPU, measured cell by cell and kept in one file.

    python benchmarks/cpu.py [--only AdamW] [--lists 1e6] [--dtype bfloat16] [--threads 1]

Without arguments it measures everything. Results are merged into benchmarks/results/cpu.json after
every cell, so a run can be interrupted, and taken up again with --resume.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from optgen.bench import report, results, suite
from optgen.bench.lists import LISTS
from optgen.bench.measure import Budget
from optgen.bench.variants import CLASSES
from optgen.cli.traffic import traffic

RESULTS = Path(__file__).resolve().parent / "results" / "cpu.json"


def main() -> int:
    """Measure, print, write down."""
    arguments = parse()
    done = results.load(arguments.out) if arguments.out and arguments.resume else {}
    chosen = [cell for cell in cells(arguments) if cell not in done]
    begin = time.perf_counter()
    measured = suite.Suite(traffic, Budget(arguments.seconds))
    for number, cell in enumerate(chosen, 1):
        figures = measured.run(cell)
        print(f"{number}/{len(chosen)} {report.line(cell, figures)}", flush=True)
        if arguments.out:
            results.merge(arguments.out, {cell: figures})
    print(f"{len(chosen)} cells in {time.perf_counter() - begin:.0f} s")
    return 0


def cells(arguments: argparse.Namespace) -> Iterator[results.Cell]:
    yield from suite.cells(
        "step", arguments.only, arguments.lists, arguments.dtype, arguments.threads
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=CLASSES, choices=CLASSES)
    parser.add_argument("--lists", nargs="*", default=list(LISTS), choices=list(LISTS))
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=5.0, help="of every cell, about")
    parser.add_argument("--resume", action="store_true", help="leave out what the file has")
    parser.add_argument("--out", type=Path, help="merge the results into this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
