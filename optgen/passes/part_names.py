"""A name that stands for things known at different times becomes two names.

All versions of a name are one variable to a printer. But a number known early is computed before
the first trip through memory, for all parameters that share it, and what a reduction makes of it
after one. And a state of rows or columns is stored where it gets its last value, only there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes, Kind, declared_kinds, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    assigns,
    children,
    expressions,
    rebuild,
    refs,
    rename_program,
    rename_refs,
)
from optgen.ir.variables import is_free
from optgen.passes.levels import kinds_of
from optgen.passes.rewrite import map_expressions


def part_names(algorithm: Algorithm) -> Algorithm:
    """The same rule, with versions; late numbers and passing states have names of their own."""
    algorithm = _with_old_states(algorithm)
    apart = {*_late_numbers(algorithm), *_passing_states(algorithm)}
    names = _new_names(algorithm, {ref.name: None for ref in apart})

    def parted(ref: Ref) -> Ref:
        return replace(ref, name=names[ref.name]) if ref in apart else ref

    return replace(algorithm, rule=rename_program(algorithm.rule, parted))


def _with_old_states(algorithm: Algorithm) -> Algorithm:
    """A state of rows or columns is copied where elements are computed from what it was.

    They are computed in every later trip through memory again, when it has its new value.
    """
    kinds = kinds_of(algorithm)
    states = [Ref(state.symbol) for state in algorithm.factor_states()]
    read = {
        ref for expr in _of_elements(algorithm.rule, kinds) for ref in refs(expr) if ref in states
    }
    names = _new_names(algorithm, {ref.name: None for ref in read}, "_before")
    copies = {ref: Ref(names[ref.name], 1) for ref in states if ref in read}

    def change(expr: Expr) -> Expr:
        of_elements = kind_of(expr, kinds.__getitem__).axes is Axes.TENSOR
        return (
            rename_refs(expr, lambda ref: copies.get(ref, ref))
            if of_elements
            else (rebuild(expr, change))
        )

    made = tuple(Assign(new, Call("copy", (old,))) for old, new in copies.items())
    return replace(algorithm, rule=(*made, *map_expressions(algorithm.rule, change)))


def _of_elements(program: Program, kinds: Mapping[Ref, Kind]) -> Iterator[Expr]:
    """Every largest expression that has a value for each element."""

    def inside(expr: Expr) -> Iterator[Expr]:
        if kind_of(expr, kinds.__getitem__).axes is Axes.TENSOR:
            yield expr
        else:
            for child in children(expr):
                yield from inside(child)

    for expr in expressions(program):
        yield from inside(expr)


def _late_numbers(algorithm: Algorithm) -> Iterable[Ref]:
    """What a reduction made, under a name that an early number has too."""
    numbers = {r: k for r, k in kinds_of(algorithm).items() if k.axes is Axes.NONE}
    early = {ref.name for ref, kind in numbers.items() if kind.is_scalar}
    return (ref for ref, kind in numbers.items() if not kind.is_scalar and ref.name in early)


def _passing_states(algorithm: Algorithm) -> Iterable[Ref]:
    """Values of a state of rows or columns that are not its last in this step."""
    states = {state.symbol for state in algorithm.factor_states()}
    last = {name: _last(algorithm.rule, name) for name in states}
    written = {a.target for a in assigns(algorithm.rule) if a.target.name in states}
    return (ref for ref in written if ref.version != last[ref.name])


def _last(program: Program, name: str) -> int:
    """The version of a name that stands after a program; both arms of a branch end in the same."""
    version = 0
    for stmt in program:
        if not isinstance(stmt, Assign):
            version = _last(stmt.then, name) or version
        elif stmt.target.name == name:
            version = stmt.target.version
    return version


def _new_names(algorithm: Algorithm, names: Iterable[str], ending: str = "") -> dict[str, str]:
    taken = {a.target.name for a in assigns(algorithm.rule)} | set(declared_kinds(algorithm))
    found: dict[str, str] = {}
    for name in sorted(names):
        numbered = (f"{name}{ending}{i}" for i in count(2))
        candidates = chain([f"{name}{ending}"] if ending else [], numbered)
        found[name] = next(n for n in candidates if is_free(n, taken))
        taken.add(found[name])
    return found
