"""Print the errors in docs/catalogue.md: PYTHONPATH=.:tests python -m lowerings.measure_papers."""

from __future__ import annotations

from collections import defaultdict

import pytest
from lowerings import test_low_rank_papers as low_rank
from lowerings import test_papers as papers
from lowerings import test_wide_papers as wide
from parity import test_matrix_rules as matrices


def largest_errors() -> dict[str, float]:
    """Return the largest error of each spec, over its cases and its lowerings on the CPU."""
    found: dict[str, float] = defaultdict(float)

    def add(spec: str, error: float) -> None:
        found[spec] = max(found[spec], error)

    for lowering in papers.LOWERINGS:
        for name, (spec, *_) in papers.PAPERS.items():
            add(spec, papers.largest_error(name, lowering))
        for name in wide.WIDE_PAPERS:
            add(name, wide.largest_error(name, 2, lowering))
    for lowering in ("forloop", "foreach"):
        for name, (spec, *_) in low_rank.PAPERS.items():
            add(spec, low_rank.largest_error(name, lowering))
    for name, lowering in [*matrices.WAYS, *matrices.FUSED]:
        with pytest.MonkeyPatch.context() as patch:
            error = matrices.follow(name, matrices.CASES[name][1], lowering, patch)
        add(name.partition(",")[0], error)
    return found


if __name__ == "__main__":
    for spec, error in sorted(largest_errors().items()):
        print(f"{spec:20} {error:.1e}")
