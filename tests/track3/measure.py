"""Print how far each result's spec is from its script's steps: `python -m track3.measure`."""

from __future__ import annotations

from track3.follow import largest_difference, steady_decompositions
from track3.results import RESULTS, Result

LOWERINGS = ("forloop", "foreach")


def row(number: int, result: Result) -> str:
    """Return a row of the table in tests/specs/track3/README.md."""
    far = [largest_difference(result, lowering, result.decomposes) for lowering in LOWERINGS]
    cells = [f"{number}", f"{result.spec}.py", *(f"{value:.1e}" for value in far)]
    if result.decomposes:
        with steady_decompositions():
            cells += [f"{largest_difference(result, lowering):.1e}" for lowering in LOWERINGS]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for number, result in RESULTS.items():
        print(row(number, result), flush=True)
