"""Print how far each result is from its script's steps: `python -m track3.measure`."""

from __future__ import annotations

from track3.follow import largest_differences, steady_decompositions
from track3.scripts import SCRIPTS
from track3.test_results import AMPLIFY_ROUNDING, lowerings

from examples.track3.result import Result
from examples.track3.results import RESULTS


def row(name: str, result: Result) -> str:
    """Return a row of the table in examples/track3/README.md."""
    names = lowerings(result)
    differences = [0.0] * len(names)
    decomposes = SCRIPTS[result.number].decomposes
    if not (decomposes and result.number in AMPLIFY_ROUNDING):
        differences = largest_differences(result, names, decomposes)
    if decomposes:
        with steady_decompositions():
            differences = [
                max(pair)
                for pair in zip(differences, largest_differences(result, names), strict=True)
            ]
    cells = [f"{value:.1e}" for value in differences] + [""] * (3 - len(differences))
    return f"| {result.number} | `{name}` | {result.title} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for name, result in RESULTS.items():
        print(row(name, result), flush=True)
