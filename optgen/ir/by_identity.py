"""Use an algorithm as the key of a cache."""

from __future__ import annotations

from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm


@dataclass(frozen=True, eq=False)
class ByIdentity:
    """An algorithm as a key: equal algorithms may differ in places, which errors name."""

    algorithm: Algorithm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.algorithm is other.algorithm

    def __hash__(self) -> int:
        return id(self.algorithm)
