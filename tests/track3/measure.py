"""Print how far each result is from its script's steps: `python -m track3.measure`."""

from __future__ import annotations

from track3.follow import largest_differences, steady_decompositions
from track3.scripts import SCRIPTS
from track3.test_results import AT_ONCE, lowerings

from examples.track3.result import Result
from examples.track3.results import RESULTS


def row(name: str, result: Result) -> str:
    """Return a row of the table in examples/track3/README.md."""
    which = lowerings(result)
    far = [0.0] * len(which)
    decomposes = SCRIPTS[result.number].decomposes
    if not (decomposes and result.number in AT_ONCE):
        far = largest_differences(result, which, decomposes)
    if decomposes:
        with steady_decompositions():
            far = [max(pair) for pair in zip(far, largest_differences(result, which), strict=True)]
    cells = [f"{value:.1e}" for value in far] + [""] * (3 - len(far))
    return f"| {result.number} | `{name}` | {result.title} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for name, result in RESULTS.items():
        print(row(name, result), flush=True)
