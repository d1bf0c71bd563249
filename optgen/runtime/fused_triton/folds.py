"""Decide whose partial sums are folded: added up in chunks by many programs, before a finish.

A finish adds up the partial sums of a tensor in each of its programs. That takes long if there are
many of them. So a launch before it folds them, in an order that depends on their number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optgen.runtime.fused_triton.launch_options import number_options

FOLD = 1024
"""Partial sums of one result that one program of a fold adds up."""
WORTH_A_LAUNCH = 32 * FOLD
"""Partial sums that take a finish about as long as the launch of a fold."""
PROGRAMS_AT_ONCE = 128
"""Programs of a finish that read partial sums at once without making one another slower."""


def fold_options(is_amd: bool) -> dict[str, Any]:
    """Return the options of a launch that folds partial sums."""
    return {"FOLD": FOLD} | number_options(is_amd)


def chunk_count(count: int, readers: int) -> int:
    """Return in how many chunks partial sums are folded; 0 if a finish adds them up as they are.

    Args:
        count: The number of partial sums of one result of one tensor.
        readers: The number of programs of a finish that add up all of them.
    """
    if count <= FOLD or count * max(1, readers // PROGRAMS_AT_ONCE) <= WORTH_A_LAUNCH:
        return 0
    return -(-count // FOLD)


@dataclass(frozen=True)
class Folds:
    """The partial sums of one kind of every tensor: of blocks, or of groups of matrices.

    Args:
        counts: For each tensor, the number of partial sums of each result.
        readers: The number of programs of a finish that add up all of them.
        results: The number of results at most.
    """

    counts: Sequence[int]
    readers: Sequence[int]
    results: int

    @property
    def chunk_counts(self) -> list[int]:
        """For each tensor, the number of chunks; 0 if its partial sums are not folded."""
        if not self.results:
            return [0] * len(self.counts)
        return list(map(chunk_count, self.counts, self.readers))

    @property
    def sizes(self) -> list[int]:
        """For each tensor, the room that its folded sums take."""
        return [self.results * chunks for chunks in self.chunk_counts]

    def rows(self, offsets: Sequence[int], folded_offsets: Sequence[int]) -> list[list[int]]:
        """Return the offsets of the sums that a finish adds up, and how many each result has."""
        chunk_counts = self.chunk_counts
        pairs = zip(chunk_counts, offsets, folded_offsets, strict=True)
        return [
            [folded if chunks else offset for chunks, offset, folded in pairs],
            [c or count for c, count in zip(chunk_counts, self.counts, strict=True)],
        ]
