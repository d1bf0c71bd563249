"""Rewrite a found rule's code as a person writes it: factors in order, short steps in one line.

Each rewriting is equal in the reals. The proof compares the written spec, so it checks them too.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from optgen.importer.algebra import Order, parsed, with_number
from optgen.importer.branches import with_joined_ifs
from optgen.importer.layout import source
from optgen.importer.statements import (
    TOTAL,
    Assign,
    If,
    Item,
    assigned,
    assignments,
    conditions,
    folded,
    is_short,
    live_in,
    local_numbers,
    names_in,
    names_read,
    negated,
    num_reads,
    printed,
    substituted,
    wide_calls,
    without_dead,
)
from optgen.importer.values import positive


def tidied(items: Sequence[Item], numbers: set[str], lasting: set[str]) -> list[Item]:
    """Return code as a person writes it.

    Args:
        items: the code.
        numbers: the names that are numbers: arguments and the step count.
        lasting: the names that are read later: the parameter and the states.
    """
    known = numbers | lasting | {"g"}
    order = Order(numbers | local_numbers(items, numbers), lasting)
    made = _pruned(_each_source(_with_norms(items), order.rewritten), {}, known)
    for _ in range(10):
        before = made
        while (shorter := _with_one_inlined(made, lasting)) is not None:
            made = _pruned(_each_source(folded(shorter), order.rewritten), {}, known)
        made = list(without_dead(_placed(made, order, lasting), set(lasting)))
        made = _with_first_values(_with_named_changes(made), numbers - assigned(made))
        made = _without_special_cases(made, order, lasting)
        if made == before:
            break
    return _with_joined_conditions(without_dead(made, set(lasting)))


def _with_norms(items: Sequence[Item]) -> list[Item]:
    """Return code that has the norm of all gradients where it reads the root of their squares."""
    made = list(items)
    for at, item in enumerate(items):
        if not isinstance(item, Assign):
            continue
        match parsed(item.source):
            case ast.Call(
                func=ast.Name("sum"),
                args=[ast.BinOp(left=x, op=ast.Pow(), right=ast.Constant(2))],
                keywords=[_] as over,
            ):
                root, rest = f"sqrt({item.name})", made[at + 1 :]
                sources = [*(value for _, value in assignments(rest)), *conditions(rest)]
                num_roots = sum(each.count(root) for each in sources)
                norm = ast.unparse(ast.Call(ast.Name("norm"), [x], over))
                if 0 < num_roots == sum(num_reads(each, item.name) for each in sources):
                    name = f"{item.name}_norm" if item.name == TOTAL else item.name

                    def renamed(source: str, _: str, old: str = root, new: str = name) -> str:
                        return source.replace(old, new)

                    rest = _each_source(rest, renamed)
                    made[at:] = [replace(item, name=name, source=norm), *rest]
    return made


def _placed(items: Sequence[Item], order: Order, lasting: set[str]) -> list[Item]:
    """Return code in which numbers stand near their use, and what one side reads alone in it.

    Ifs with one condition that are neighbours then are one.
    """
    numbers = order.numbers - lasting
    made: list[Item] = []
    for at, item in enumerate(items):
        if isinstance(item, If):
            live = live_in(items[at + 1 :], lasting)
            then, other = (tuple(_placed(each, order, live)) for each in (item.then, item.other))
            item = replace(item, then=then, other=other)
        made.append(item)
    for at in reversed(range(len(made))):
        item, names = made[at], assigned(made[at : at + 1])
        if not names & (lasting | {"p", "g"}):
            to = _place_of(made, at, numbers) if names <= numbers else at
            made.insert(to, made.pop(at))
            if isinstance(item, Assign) and to + 1 < len(made):
                made[to : to + 2] = _inside(item, made[to + 1], live_in(made[to + 2 :], lasting))
    return with_joined_ifs(_with_repeated(made, numbers))


def _place_of(items: Sequence[Item], at: int, numbers: set[str]) -> int:
    """Return the place before the next statement that a number concerns, and before its others."""
    names, read = assigned(items[at : at + 1]), names_read(items[at : at + 1])
    for to in range(at + 1, len(items)):
        changed = assigned(items[to : to + 1])
        if names & (names_read(items[to : to + 1]) | changed) or read & changed:
            while to - 1 > at and assigned(items[to - 1 : to]) <= numbers:
                to -= 1
            return to - 1
    return at


def _inside(item: Assign, after: Item, live: set[str]) -> list[Item]:
    """Return an assignment and the statement after it: inside the one side that reads it.

    `live`: the names that are read later.
    """
    if not isinstance(after, If) or item.name in names_in(after.condition):
        return [item, after]
    if wide_calls(item.source):
        return [item, after]  # all steps take it
    sides = [list(after.then), list(after.other)]
    needs = [item.name in live_in(side, live) for side in sides]
    if sum(needs) != 1 or not (side := sides[needs.index(True)]):
        return [item, after]
    side.insert(0, item)
    return [replace(after, then=tuple(sides[0]), other=tuple(sides[1]))]


def _with_repeated(items: Sequence[Item], numbers: set[str]) -> list[Item]:
    """Return code in which a number between two ifs with one condition stands in both sides."""
    made: list[Item] = []
    for item in items:
        first, between = made[-2:] if len(made) > 1 else (item, item)
        if (
            isinstance(item, If)
            and isinstance(first, If)
            and isinstance(between, Assign)
            and first.condition == item.condition
            and between.name in numbers
            and first.then
            and first.other
            and not names_in(item.condition) & assigned([first, between])
        ):
            sides = (*first.then, between, *item.then), (*first.other, between, *item.other)
            made[-2:] = [replace(item, then=sides[0], other=sides[1])]
        else:
            made.append(item)
    return made


def _with_named_changes(items: Sequence[Item]) -> list[Item]:
    """Return code that names a changed gradient before what else reads the change.

    `d = -g * c`, `g = g * c` is `g = g * c`, `d = -g`; so it is if the first stands in an `if`.
    """
    made = list(items)
    for at, (first, later) in enumerate(itertools.pairwise(items)):
        if not isinstance(later, Assign) or later.name != "g":
            continue
        inside = (first,) if isinstance(first, Assign) else first.then + first.other
        user = inside[0]
        if len(inside) > 1 or not isinstance(user, Assign) or user.name in names_in(later.source):
            continue
        changed = _reading(user.source, later.source)
        if changed is None or (isinstance(first, If) and "g" in names_in(first.condition)):
            continue
        user = replace(user, source=changed)
        if isinstance(first, If):
            sides = ((user,), ()) if first.then else ((), (user,))
            made[at : at + 2] = [later, replace(first, then=sides[0], other=sides[1])]
        else:
            made[at : at + 2] = [later, user]
    return made


def _reading(value: str, change: str) -> str | None:
    """Return `g` or `-g` for a value that is a change of the gradient, or its negative."""
    node = parsed(value)
    if ast.dump(node) == ast.dump(parsed(change)):
        return "g"
    other = positive(node)
    return "-g" if other is not None and ast.dump(other) == ast.dump(parsed(change)) else None


def _without_special_cases(items: Sequence[Item], order: Order, lasting: set[str]) -> list[Item]:
    """Return code without an `if x == 1` whose side the other side is too where x is 1.

    `if nu != 1: m = nu * m + (1 - nu) * g` is `m = nu * m + (1 - nu) * g`.
    """
    made: list[Item] = []
    for at, item in enumerate(items):
        if isinstance(item, Assign):
            made.append(item)
            continue
        live = live_in(items[at + 1 :], lasting)
        then, other = (
            tuple(_without_special_cases(side, order, live)) for side in (item.then, item.other)
        )
        item = replace(item, then=then, other=other)
        match parsed(item.condition):
            case ast.Compare(
                left=ast.Name(name), ops=[op], comparators=[ast.Constant(value=int() as number)]
            ) if number and isinstance(op, ast.Eq | ast.NotEq):
                values = [_values(side, live, name, number, order) for side in (then, other)]
                if values[0] is not None and values[0] == values[1]:
                    made += other if isinstance(op, ast.Eq) else then
                    continue
        made.append(item)
    return made


def _values(
    items: Sequence[Item], live: set[str], name: str, number: int, order: Order
) -> dict[str, str] | None:
    """Return the values that code gives to live names where `name` is a number; None with ifs.

    The values read all names as they are before the code.
    """
    found: dict[str, str] = {}
    for item in items:
        if isinstance(item, If):
            return None
        found[item.name] = substituted(item.source, found)
    values = {
        each: order.rewritten(with_number(value, name, number), each)
        for each, value in found.items()
        if each in live
    }
    return {each: value for each, value in values.items() if value != each}


def _with_first_values(items: Sequence[Item], numbers: set[str]) -> list[Item]:
    """Return code that reads an argument and not a variable that is another name of it.

    `rate = lr`, `if c: rate = 0.1 * rate` is `rate = lr`, `if c: rate = 0.1 * lr`.
    """
    made = list(items)
    for at, item in enumerate(items):
        if isinstance(item, If):
            then, other = (_with_first_values(side, numbers) for side in (item.then, item.other))
            made[at] = replace(item, then=tuple(then), other=tuple(other))
        elif item.source in numbers:
            rest = _with_value_of(made[at + 1 :], item.name, item.source)
            return [*made[: at + 1], *_with_first_values(rest, numbers)]
    return made


def _with_value_of(items: Sequence[Item], name: str, value: str) -> list[Item]:
    """Return code that reads a variable's value, and not itself, up to its next assignments."""
    made = list(items)
    for at, item in enumerate(items):
        if isinstance(item, If):
            then, other = (
                tuple(_with_value_of(side, name, value)) for side in (item.then, item.other)
            )
            made[at] = If(substituted(item.condition, {name: value}), then, other, item.is_tensor)
        else:
            made[at] = replace(item, source=substituted(item.source, {name: value}))
        if name in assigned([item]):
            break
    return made


def _pruned(items: Sequence[Item], known: Mapping[str, bool], defined: set[str]) -> list[Item]:
    """Return code without conditions that an outer one answers, and with common parts outside.

    `known`: the conditions that are answered here. `defined`: the names that have values here.
    """
    made: list[Item] = []
    for item in items:
        num_before = len(made)
        if not isinstance(item, If):
            made.append(item)
        elif item.condition in known:
            made += _pruned(item.then if known[item.condition] else item.other, known, defined)
        else:
            then, other = (
                _pruned(side, {**known, item.condition: answer}, defined)
                for side, answer in ((item.then, True), (item.other, False))
            )
            item = replace(item, then=tuple(then), other=tuple(other))
            for part in _with_common_ends_outside(item):
                made += _with_common_middle_outside(part, defined)
        changed = assigned(made[num_before:])
        known = {c: answer for c, answer in known.items() if not names_in(c) & changed}
        defined = defined | _defined_by(made[num_before:])
    return made


def _defined_by(items: Sequence[Item]) -> set[str]:
    """Return the names that code assigns for certain."""
    names: set[str] = set()
    for item in items:
        if isinstance(item, If):
            names |= _defined_by(item.then) & _defined_by(item.other)
        else:
            names.add(item.name)
    return names


def _with_common_middle_outside(item: Item, defined: set[str]) -> list[Item]:
    """Return an `if` whose sides share three lines or more in their middles as two ifs around them.

    `if c: a, m, b else: d, m, e` is `if c: a else: d`, `m`, `if c: b else: e`. A name that only one
    of the first parts gives a value to is read by none of the later parts.
    """
    if not isinstance(item, If):
        return [item]
    match = SequenceMatcher(None, item.then, item.other, autojunk=False).find_longest_match()
    middle = item.then[match.a : match.a + match.size]
    before = replace(item, then=item.then[: match.a], other=item.other[: match.b])
    after = replace(
        item, then=item.then[match.a + match.size :], other=item.other[match.b + match.size :]
    )
    unsure = assigned([before]) - _defined_by([before]) - defined
    is_lasting = not names_in(item.condition) & assigned([before, *middle])
    is_long = sum(1 for _ in printed(middle)) >= 3
    if not (is_long and is_lasting) or unsure & names_read([*middle, after]):
        return [item]
    return [each for each in (before, *middle, after) if not _is_empty(each)]


def _is_empty(item: Item) -> bool:
    return isinstance(item, If) and not item.then and not item.other


def _with_common_ends_outside(item: If) -> list[Item]:
    """Return an `if` with what both sides begin or end with before or after it."""
    then, other = list(item.then), list(item.other)
    before: list[Item] = []
    after: list[Item] = []
    while then and other and then[-1] == other[-1]:
        after.insert(0, then.pop())
        other.pop()
    asked = names_in(item.condition)
    while then and other and then[0] == other[0] and not assigned(then[:1]) & asked:
        before.append(then.pop(0))
        other.pop(0)
    middle = [replace(item, then=tuple(then), other=tuple(other))] if then or other else []
    return [*before, *middle, *after]


def _with_joined_conditions(items: Sequence[Item]) -> list[Item]:
    """Return code with `if a and b` for an `if b` that is all of an `if a`."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, If):
            outer = _positive(item)
            if len(outer.then) == 1 and isinstance(inner := outer.then[0], If) and not outer.other:
                inner = _positive(inner)
                if not inner.other:
                    both = ast.BoolOp(ast.And(), [*map(parsed, (outer.condition, inner.condition))])
                    outer = replace(inner, condition=source(both))
            then, other = map(_with_joined_conditions, (outer.then, outer.other))
            made.append(replace(outer, then=tuple(then), other=tuple(other)))
        else:
            made.append(item)
    return made


def _positive(item: If) -> If:
    """Return an `if` whose code is not in its `else` alone."""
    if item.then:
        return item
    return replace(item, condition=negated(item.condition), then=item.other, other=())


def _each_source(items: Sequence[Item], change: Callable[[str, str], str]) -> list[Item]:
    """Return code whose expressions are changed. `change` gets an expression and its name."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, If):
            then = tuple(_each_source(item.then, change))
            other = tuple(_each_source(item.other, change))
            made.append(If(change(item.condition, ""), then, other, item.is_tensor))
        else:
            made.append(replace(item, source=change(item.source, item.name)))
    return made


def _with_one_inlined(items: Sequence[Item], lasting: set[str]) -> list[Item] | None:
    """Return code without one value that is read once, in a short statement; None if none."""
    for at, item in enumerate(items):
        rest = items[at + 1 :]
        changed: list[Item] | None = None
        if isinstance(item, If):
            later = live_in(rest, lasting)
            then = _with_one_inlined(item.then, later)
            other = _with_one_inlined(item.other, later) if then is None else None
            if then is not None:
                changed = [replace(item, then=tuple(then)), *rest]
            elif other is not None:
                changed = [replace(item, other=tuple(other)), *rest]
        elif item.name != "p":
            changed = _replaced_once(rest, item.name, item.source, lasting)
        if changed is not None:
            return [*items[:at], *changed]
    return None


def _replaced_once(
    items: Sequence[Item], name: str, value: str, lasting: set[str]
) -> list[Item] | None:
    """Return code with the only use of a variable's value in its place; None if that cannot be."""
    at = _only_use(items, name, names_in(value))
    if at is None or isinstance(user := items[at], If):
        return None
    if name == "g" and user.source != "g":
        return None
    later = items[at + 1 :]
    if user.name != name and (
        _is_read(later, name) or (name in lasting and not _is_set(later, name))
    ):
        return None
    changed = replace(user, source=substituted(user.source, {name: value}))
    if _is_complement(value) and f"1 - {name}" in user.source:
        return None  # 1 - (1 - x) is harder to read than the author's two lines
    if not is_short(changed):
        return None
    return [*items[:at], changed, *later]


def _is_complement(value: str) -> bool:
    match parsed(value):
        case ast.BinOp(left=ast.Constant(1), op=ast.Sub()):
            return True
    return False


def _only_use(items: Sequence[Item], name: str, sources: set[str]) -> int | None:
    """Return where a value is used first, while its sources are as they were; None if nowhere."""
    for at, user in enumerate(items):
        if name in names_read([user]):
            is_once = not isinstance(user, If) and num_reads(user.source, name) == 1
            return at if is_once else None
        if assigned([user]) & {name, *sources}:
            return None
    return None


def _is_read(items: Sequence[Item], name: str) -> bool:
    """Tell if code may read a name before it sets it."""
    for item in items:
        if name in names_read([item]):
            return True
        if not isinstance(item, If) and item.name == name:
            return False
    return False


def _is_set(items: Sequence[Item], name: str) -> bool:
    return any(not isinstance(item, If) and item.name == name for item in items)
