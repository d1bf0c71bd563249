"""A name that is a number first and something a reduction makes later becomes two names.

All versions of a name are one variable to a printer. But numbers known early are computed before
the first trip through memory, for all parameters that share them, and what a reduction makes after.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes, declared_kinds
from optgen.ir.nodes import Ref, assigns, rename_program
from optgen.ir.variables import is_free
from optgen.passes.levels import kinds_of


def part_homes(algorithm: Algorithm) -> Algorithm:
    """The same rule, with versions; a name's late numbers have a name of their own."""
    kinds = kinds_of(algorithm)
    numbers = {ref: kind for ref, kind in kinds.items() if kind.axes is Axes.NONE}
    early = {ref.name for ref, kind in numbers.items() if kind.is_scalar}
    taken = {a.target.name for a in assigns(algorithm.rule)} | set(declared_kinds(algorithm))
    names: dict[str, str] = {}
    for ref, kind in numbers.items():
        if not kind.is_scalar and ref.name in early and ref.name not in names:
            numbered = (f"{ref.name}{n}" for n in count(2))
            names[ref.name] = next(n for n in numbered if is_free(n, taken))
            taken.add(names[ref.name])

    def parted(ref: Ref) -> Ref:
        late = ref.name in names and not kinds[ref].is_scalar
        return replace(ref, name=names[ref.name]) if late else ref

    return replace(algorithm, rule=rename_program(algorithm.rule, parted))
