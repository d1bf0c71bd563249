"""Use an algorithm as the key of a cache."""

from __future__ import annotations

from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm


@dataclass(frozen=True, eq=False)
class IdentityKey:
    """A key that equals only a key of the same algorithm object.

    Equal algorithms may stand at different places in files, and errors name these places.
    """

    algorithm: Algorithm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.algorithm is other.algorithm

    def __hash__(self) -> int:
        return id(self.algorithm)
