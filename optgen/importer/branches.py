"""Both sides of a branch: merged from two runs, left out where no step takes one, or chosen."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from optgen.importer.recording import NotImportedError
from optgen.importer.statements import Assign, If, Item, assigned, names_in, substituted


def merged(condition: str, then: Sequence[Item], other: Sequence[Item]) -> list[Item]:
    """Return code that is `then` if a lasting condition is true, else `other`."""
    made: list[Item] = []
    matcher = SequenceMatcher(None, list(then), list(other), autojunk=False)
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag == "equal":
            made += then[a1:a2]
            continue
        left, right = list(then[a1:a2]), list(other[b1:b2])
        if _are_alike(left, right):
            for a, b in zip(left, right, strict=True):
                assert isinstance(a, If)
                assert isinstance(b, If)
                inside = [
                    merged(condition, x, y) for x, y in ((a.then, b.then), (a.other, b.other))
                ]
                made.append(If(a.condition, tuple(inside[0]), tuple(inside[1]), a.is_tensor))
            continue
        made.append(If(condition, tuple(left), tuple(right)))
    return made


def without_impossible(items: Sequence[Item], first: str) -> list[Item]:
    """Return code without sides that no step takes: where `first` is true, the count is 1."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, If):
            then, other = list(item.then), list(item.other)
            if item.condition == first:
                then, other = list(_counted_once(then)), given("t == 1", False, other)
            elif (is_first := _at_first_step(item.condition)) is not None:
                then, other = (
                    side if is_taken else given(first, False, side)
                    for side, is_taken in ((then, is_first), (other, not is_first))
                )
            then, other = (without_impossible(each, first) for each in (then, other))
            item = If(item.condition, tuple(then), tuple(other), item.is_tensor)
        made.append(item)
    return made


def _at_first_step(condition: str) -> bool | None:
    """Return the answer of a condition on the count alone for the count 1; None for others."""
    if names_in(condition) != {"t"}:
        return None
    try:
        return bool(eval(condition, {"__builtins__": {}}, {"t": 1}))
    except ArithmeticError:
        return None


def _counted_once(items: Sequence[Item]) -> Iterator[Item]:
    """Yield the code of a step with the count 1."""
    for item in items:
        if isinstance(item, Assign):
            yield item
        elif (is_true := _at_first_step(item.condition)) is not None:
            yield from _counted_once(item.then if is_true else item.other)
        else:
            then, other = (tuple(_counted_once(side)) for side in (item.then, item.other))
            yield If(item.condition, then, other, item.is_tensor)


def _are_alike(left: Sequence[Item], right: Sequence[Item]) -> bool:
    """Tell if both are ifs with the same conditions."""
    return len(left) == len(right) and all(
        isinstance(a, If) and isinstance(b, If) and a.condition == b.condition
        for a, b in zip(left, right, strict=True)
    )


def with_wheres(items: Sequence[Item]) -> list[Item]:
    """Return code in which an `if` on a tensor's value is computed on both sides."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, Assign):
            made.append(item)
            continue
        then, other = with_wheres(item.then), with_wheres(item.other)
        if item.is_tensor:
            made += _with_common_parts_outside(item.condition, then, other)
        else:
            made.append(If(item.condition, tuple(then), tuple(other)))
    return made


def _with_common_parts_outside(
    condition: str, then: Sequence[Item], other: Sequence[Item]
) -> list[Item]:
    """Return both sides of a branch on a tensor; what both have is computed once."""
    matcher = SequenceMatcher(None, list(then), list(other), autojunk=False)
    parts = matcher.get_opcodes()
    has_ifs = any(isinstance(item, If) for item in (*then, *other))
    if has_ifs or all(part[0] != "equal" for part in parts):
        return _with_inner_ifs_outside(condition, then, other)
    made: list[Item] = []
    if names_in(condition) & assigned((*then, *other)):
        made.append(Assign("is_taken", condition if _is_answer(condition) else f"{condition} != 0"))
        condition = "is_taken"
    for tag, a1, a2, b1, b2 in parts:
        if tag == "equal":
            made += then[a1:a2]
        else:
            made += _both_sides(condition, then[a1:a2], other[b1:b2])
    return made


def _with_inner_ifs_outside(
    condition: str, then: Sequence[Item], other: Sequence[Item]
) -> list[Item]:
    """Return both sides of a branch on a tensor; ifs inside a side stand around them.

    `if tensor: (if flag: a else: b) else: c` is `if flag: (if tensor: a else: c) else: …`.
    """
    for side in (then, other):
        at = next((n for n, item in enumerate(side) if isinstance(item, If)), None)
        if at is None:
            continue
        inner = side[at]
        assert isinstance(inner, If)
        if names_in(inner.condition) & assigned(side[:at]):
            raise NotImportedError("branches inside a branch on a tensor's value", item_place(side))
        sides = []
        for outcome in (True, False):
            a, b = (given(inner.condition, outcome, each) for each in (then, other))
            sides.append(tuple(_with_inner_ifs_outside(condition, a, b)))
        return [If(inner.condition, sides[0], sides[1])]
    return list(_both_sides(condition, then, other))


def given(condition: str, outcome: bool, items: Sequence[Item]) -> list[Item]:
    """Return code in which a lasting condition is known: of its ifs one side stays."""
    made: list[Item] = []
    for n, item in enumerate(items):
        if isinstance(item, Assign):
            made.append(item)
            if item.name in names_in(condition):
                return [*made, *items[n + 1 :]]
            continue
        if item.condition == condition:
            made += given(condition, outcome, item.then if outcome else item.other)
            continue
        then, other = (tuple(given(condition, outcome, s)) for s in (item.then, item.other))
        made.append(If(item.condition, then, other, item.is_tensor))
    return made


def chosen(condition: str, then: str, other: str, flags: set[str]) -> str:
    """Return the choice between two expressions as an expression. `flags`: names of answers."""
    is_answer = condition in flags or _is_answer(condition)
    condition = condition if is_answer else f"{condition} != 0"
    return f"where({condition}, {then}, {other})"


def _both_sides(condition: str, then: Sequence[Item], other: Sequence[Item]) -> Iterator[Assign]:
    """Yield both sides, with names of their own, and the choice between their results."""
    condition = condition if _is_answer(condition) else f"{condition} != 0"
    names = dict.fromkeys(item.name for item in (*then, *other) if isinstance(item, Assign))
    if names_in(condition) & set(names):
        yield Assign("is_taken", condition)
        condition = "is_taken"
    results: list[dict[str, str]] = []
    for side, ending in ((then, "then"), (other, "else")):
        last: dict[str, str] = {}
        for number, item in enumerate(side):
            if isinstance(item, If):
                raise NotImportedError(
                    "branches inside a branch on a tensor's value", item_place(side)
                )
            source = item.source
            for name, by in last.items():
                source = substituted(source, {name: by})
            later = side[number + 1 :]
            if any(isinstance(x, If) or item.name in names_in(x.source) for x in later):
                yield Assign(f"{item.name}_{ending}", source, item.place)
                source = f"{item.name}_{ending}"
            last[item.name] = source
        results.append(last)
    for name in names:
        a, b = (result.get(name, name) for result in results)
        yield Assign(name, f"where({condition}, {a}, {b})")


def item_place(items: Sequence[Item]) -> tuple[str, int]:
    """Return the author's line of the first assignment."""
    return next((x.place for x in items if isinstance(x, Assign)), ("", 0))


def _is_answer(condition: str) -> bool:
    match ast.parse(condition, mode="eval").body:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Call(func=ast.Name("fresh" | "factored")) | ast.Name("is_taken"):
            return True
    return False


def with_joined_ifs(items: Sequence[Item]) -> list[Item]:
    """Return code in which neighbouring ifs with one condition, which stays as it is, are one.

    An `if` after another one, whose sides both end with an `if` on its condition, joins both ends.
    """
    made: list[Item] = []
    for item in items:
        before = made[-1] if made else None
        if isinstance(item, If) and isinstance(before, If):
            changed = assigned(before.then + before.other)
            if not names_in(item.condition) & changed and _joins(before, item.condition):
                made[-1] = _joined(before, item)
                continue
        made.append(item)
    return [
        replace(x, then=tuple(with_joined_ifs(x.then)), other=tuple(with_joined_ifs(x.other)))
        if isinstance(x, If)
        else x
        for x in made
    ]


def _joins(before: If, condition: str) -> bool:
    """Tell if an `if` is on a condition, or both of its sides end with such an `if`."""
    return before.condition == condition or all(
        side and isinstance(side[-1], If) and _joins(side[-1], condition)
        for side in (before.then, before.other)
    )


def _joined(before: If, item: If) -> If:
    """Return an `if` with the code of a later one, where that one's condition is asked."""
    if before.condition == item.condition:
        return replace(before, then=before.then + item.then, other=before.other + item.other)
    return replace(before, then=(*before.then, item), other=(*before.other, item))


def with_totals_outside(items: Sequence[Item], arguments: set[str]) -> list[Item]:
    """Return code in which sums over several parameters stand outside of ifs on arguments.

    `if flag: …; r = mean(x, over="all"); …` is `if flag: …; x_of_r = x else: x_of_r = g`, then the
    mean of `x_of_r`, then the rest under the same `if`.
    """
    made: list[Item] = []
    for item in items:
        parts = None
        if isinstance(item, If) and names_in(item.condition) <= arguments:
            parts = _cut(item)
        if parts is None:
            made.append(item)
            continue
        before, total, rest = parts
        made += [before, total, *with_totals_outside([rest], arguments)]
    return made


def _cut(item: If) -> tuple[If, Assign, If] | None:
    """Return an `if` up to its first sum over several parameters, the sum, and the rest."""
    for side, other in ((item.then, item.other), (item.other, item.then)):
        for at, each in enumerate(side):
            if (found := _with_part(each)) is None:
                continue
            total, part = found
            before = (*side[:at], part)
            rest = side[at + 1 :]
            unused = (Assign(f"x_of_{total.name}", "g", total.place, "tensor"),)
            if side is item.then:
                return (
                    replace(item, then=before, other=unused),
                    total,
                    replace(item, then=rest, other=other),
                )
            return (
                replace(item, then=unused, other=before),
                total,
                replace(item, then=other, other=rest),
            )
    return None


def _with_part(item: Item) -> tuple[Assign, Item] | None:
    """Return a sum over several parameters, and the code of what it sums; None for other code."""
    if isinstance(item, If):
        if not (item.then and item.other):
            return None
        ends = [_with_part(side[-1]) for side in (item.then, item.other)]
        if None in ends or ends[0][0] != ends[1][0]:  # type: ignore[index]
            return None
        total, *parts = ends[0][0], *(end[1] for end in ends if end)  # type: ignore[index]
        then, other = (*item.then[:-1], parts[0]), (*item.other[:-1], parts[1])
        return total, replace(item, then=then, other=other)
    match ast.parse(item.source, mode="eval").body:
        case ast.Call(args=[summed], keywords=[ast.keyword(arg="over")]) as call:
            name = f"x_of_{item.name}"
            total = replace(item, source=ast.unparse(_with_argument(call, name)))
            return total, Assign(name, ast.unparse(summed), item.place, "tensor")
    return None


def _with_argument(call: ast.Call, name: str) -> ast.Call:
    """Return a call with a name as its argument."""
    return ast.Call(call.func, [ast.Name(name)], call.keywords)
