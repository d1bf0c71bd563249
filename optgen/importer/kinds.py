"""Give a variable that holds values of several kinds a name for each kind.

Python lets `x` be a matrix and then its transpose, or a number on one side of a branch. In the
language a name keeps its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optgen.importer.branches import chosen
from optgen.importer.statements import (
    Assign,
    If,
    Item,
    assigned,
    local_numbers,
    names_in,
    names_read,
    substituted,
    words_in,
)


def with_kinds(items: Sequence[Item], kept: set[str]) -> list[Item]:
    """Return code in which names have one kind, where that can be. `kept`: names that stay."""
    kinds: dict[str, set[str]] = {}
    _collect(items, kinds)
    made = list(items)
    for name, found in kinds.items():
        if len(found) > 1 and name not in kept:
            lasting: dict[str, int] = {}
            _split(made, name, is_read_later=False, numbers={}, lasting=lasting)
            made = _split(made, name, is_read_later=False, numbers=dict(lasting), lasting={})
    return made


def with_numbers_widened(items: Sequence[Item], numbers: set[str], flags: set[str]) -> list[Item]:
    """Return code in which no `if` makes a variable a number on one side and a tensor on the other.

    `if t == 1: x = c else: x = m / 2` is `x = where(t == 1, c, m / 2)`. `numbers`: the names that
    are numbers: arguments, the step count, states.
    """
    numbers = numbers | local_numbers(items, numbers)

    def is_number(source: str) -> bool:
        return names_in(source) - words_in(source) <= numbers

    def widened(part: Sequence[Item]) -> list[Item]:
        made: list[Item] = []
        for item in part:
            if isinstance(item, Assign) or item.is_tensor:
                made.append(item)
                continue
            sides = [widened(item.then), widened(item.other)]
            moved: list[Assign] = []
            for name in sorted(assigned(sides[0]) & assigned(sides[1])):
                a, b = (_last(side, name, assigned(sides[0] + sides[1])) for side in sides)
                if a is None or b is None or is_number(a.source) == is_number(b.source):
                    continue
                sides[0].remove(a)
                sides[1].remove(b)
                moved.append(
                    Assign(name, chosen(item.condition, a.source, b.source, flags), a.place)
                )
            rest = replace(item, then=tuple(sides[0]), other=tuple(sides[1]))
            made += [*([rest] if rest.then or rest.other else []), *moved]
        return made

    return widened(items)


def _last(items: Sequence[Item], name: str, changed: set[str]) -> Assign | None:
    """Return the one assignment to a name that may stand after an `if` too; None if there is none.

    `changed`: the names that the `if` assigns. The assignment reads none of them.
    """
    at = [n for n, item in enumerate(items) if name in assigned([item])]
    item = items[at[-1]]
    if len(at) > 1 or not isinstance(item, Assign) or name in names_read(items[at[-1] + 1 :]):
        return None
    return None if names_in(item.source) & changed else item


def _collect(items: Sequence[Item], kinds: dict[str, set[str]]) -> None:
    for item in items:
        if isinstance(item, Assign):
            kinds.setdefault(item.name, set()).add(item.kind)
        else:
            _collect(item.then + item.other, kinds)


def _split(
    items: Sequence[Item],
    name: str,
    *,
    is_read_later: bool,
    numbers: dict[str, int],
    lasting: dict[str, int],
) -> list[Item]:
    """Return code in which each assignment to a name that ends its life makes a new name.

    `numbers`: the kinds that have a name so far; the first one keeps the variable's. `lasting`
    gets the kind that keeps it for the code after an `if`.
    """
    made: list[Item] = []
    rest = list(items)
    while rest:
        item = rest.pop(0)
        if isinstance(item, If):
            is_needed = is_read_later or name in _read_before_set(rest, name)
            then, other = (
                tuple(_split(side, name, is_read_later=is_needed, numbers=numbers, lasting=lasting))
                for side in (item.then, item.other)
            )
            made.append(If(item.condition, then, other, item.is_tensor))
            continue
        if item.name != name:
            made.append(item)
            continue
        end = next(
            (n for n, i in enumerate(rest) if isinstance(i, Assign) and i.name == name), None
        )
        if end is None and is_read_later:
            lasting.setdefault(item.kind, 0)
            made.append(item)
            continue
        end = len(rest) if end is None else end
        own = _own_name(name, item.kind, numbers)
        life = _renamed(rest[:end], name, own)
        after = rest[end:]
        if after and isinstance(after[0], Assign):
            after[0] = replace(after[0], source=substituted(after[0].source, {name: own}))
        made += [replace(item, name=own), *life]
        rest = after
    return made


def _renamed(items: Sequence[Item], name: str, own: str) -> list[Item]:
    """Return code in which a variable has another name."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, Assign):
            target = own if item.name == name else item.name
            made.append(replace(item, name=target, source=substituted(item.source, {name: own})))
            continue
        then, other = (tuple(_renamed(side, name, own)) for side in (item.then, item.other))
        made.append(If(substituted(item.condition, {name: own}), then, other, item.is_tensor))
    return made


def _own_name(name: str, kind: str, numbers: dict[str, int]) -> str:
    """Return the name for a kind: the first kind keeps the variable's name."""
    number = numbers.setdefault(kind, len(numbers))
    return f"{name}_{kind}" if number else name


def _read_before_set(items: Sequence[Item], name: str) -> set[str]:
    """Return the names that code reads before it assigns `name` for certain."""
    found: set[str] = set()
    for item in items:
        if isinstance(item, Assign):
            found |= names_in(item.source)
            if item.name == name:
                return found
        else:
            found |= names_read([item])
            if name in assigned(item.then) and name in assigned(item.other):
                return found
    return found
