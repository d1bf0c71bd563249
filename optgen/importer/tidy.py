"""Rewrite a found rule's code as a person writes it: factors in order, short steps in one line.

Each rewriting is equal in the reals. The proof compares the written spec, so it checks them too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from fractions import Fraction

from optgen.importer.layout import source
from optgen.importer.statements import (
    If,
    Item,
    assigned,
    assignments,
    folded,
    local_numbers,
    names_in,
    names_read,
    negated,
    num_reads,
    printed,
    substituted,
    without_dead,
    words_in,
)
from optgen.importer.values import positive

SHORT = 88
"""The columns of a statement that may take in another one."""


def tidied(items: Sequence[Item], numbers: set[str], lasting: set[str]) -> list[Item]:
    """Return code as a person writes it.

    Args:
        items: the code.
        numbers: the names that are numbers: arguments and the step count.
        lasting: the names that are read later: the parameter and the states.
    """
    known = numbers | lasting | {"g"}
    order = _Order(numbers | local_numbers(items, numbers))
    made = _pruned(_each_source(items, order.rewritten), {}, known)
    while (shorter := _with_one_inlined(made, lasting)) is not None:
        made = _pruned(_each_source(folded(shorter), order.rewritten), {}, known)
    made = _with_first_values(made, numbers - assigned(made))
    return _with_joined_conditions(without_dead(made, set(lasting)))


def _with_first_values(items: Sequence[Item], numbers: set[str]) -> list[Item]:
    """Return code in which the first change of a variable reads the argument that it began as.

    `rate = lr`, `if c: rate = 0.1 * rate` is `rate = lr`, `if c: rate = 0.1 * lr`.
    """
    made: list[Item] = []
    for at, item in enumerate(items):
        if isinstance(item, If):
            then, other = (
                tuple(_with_first_values(side, numbers)) for side in (item.then, item.other)
            )
            made.append(replace(item, then=then, other=other))
        elif item.source in numbers:
            rest = _with_value_of(items[at + 1 :], item.name, item.source)
            return [*made, item, *_with_first_values(rest, numbers)]
        else:
            made.append(item)
    return made


def _with_value_of(items: Sequence[Item], name: str, value: str) -> list[Item]:
    """Return code in which the first assignments to a variable read its value, and not itself."""
    made = list(items)
    for at, item in enumerate(items):
        if isinstance(item, If):
            then, other = (
                tuple(_with_value_of(side, name, value)) for side in (item.then, item.other)
            )
            made[at] = replace(item, then=then, other=other)
        elif item.name == name:
            made[at] = replace(item, source=substituted(item.source, name, value))
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


def means_of_squares(items: Sequence[Item]) -> set[str]:
    """Return the names that code computes as `decay * v + (1 - decay) * g**2`."""
    found: set[str] = set()
    for name, value in assignments(items):
        match _parsed(value):
            case ast.BinOp(
                left=ast.BinOp(left=decay, op=ast.Mult(), right=ast.Name(kept)),
                op=ast.Add(),
                right=ast.BinOp(
                    left=ast.BinOp(left=ast.Constant(1), op=ast.Sub(), right=other),
                    op=ast.Mult(),
                    right=ast.BinOp(op=ast.Pow(), right=ast.Constant(2)),
                ),
            ) if kept == name and ast.dump(decay) == ast.dump(other):
                found.add(name)
    return found


def _with_joined_conditions(items: Sequence[Item]) -> list[Item]:
    """Return code with `if a and b` for an `if b` that is all of an `if a`."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, If):
            outer = _positive(item)
            if len(outer.then) == 1 and isinstance(inner := outer.then[0], If) and not outer.other:
                inner = _positive(inner)
                if not inner.other:
                    both = ast.BoolOp(
                        ast.And(), [*map(_parsed, (outer.condition, inner.condition))]
                    )
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


def _parsed(value: str) -> ast.expr:
    return ast.parse(value, mode="eval").body


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


class _Order(ast.NodeTransformer):
    """Writes numbers before tensors, and folds what a paper writes shorter."""

    def __init__(self, numbers: set[str]) -> None:
        self.numbers = numbers

    def rewritten(self, value: str, name: str) -> str:
        """Return an expression in order. `name` is the variable that gets it; "" of a condition."""
        if value == "t - 1" and not name:
            return "t > 1"  # the first step's count is 1
        node = self.visit(ast.parse(value, mode="eval").body)
        return source(_shrunk(node) if name == "p" else node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        x = node.value
        if not isinstance(x, float):
            return node
        if x.is_integer() and abs(x) < 1e6:
            return ast.Constant(int(x))
        top, bottom = Fraction(x).limit_denominator(12).as_integer_ratio()
        is_share = bottom > 1 and top / bottom == x
        if len(repr(x)) > 12 and is_share:  # 1 / 3 and not 0.3333333333333333
            return ast.BinOp(ast.Constant(top), ast.Div(), ast.Constant(bottom))
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(each) for each in node.args]
        match node:
            case ast.Call(
                func=ast.Name("where"),
                args=[a, ast.Call(func=ast.Name("where"), args=[b, x, inner]), outer],
            ) if ast.dump(inner) == ast.dump(outer):
                both = ast.BoolOp(ast.And(), [*_conjuncts(a), *_conjuncts(b)])
                return ast.Call(node.func, [both, x, outer], [])
            case ast.Call(
                func=ast.Name("lerp"),
                args=[a, b, ast.BinOp(left=ast.Constant(1), op=ast.Sub(), right=kept) as new],
            ):
                return ast.BinOp(_product(kept, a), ast.Add(), self.visit(_product(new, b)))
            case ast.Call(
                func=ast.Name("sqrt"),
                args=[
                    ast.Call(
                        func=ast.Name("mean"),
                        args=[ast.BinOp(left=x, op=ast.Pow(), right=ast.Constant(2))],
                        keywords=[],
                    )
                ],
            ):
                return ast.Call(ast.Name("rms"), [x], [])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left: ast.expr = self.visit(node.left)
        right: ast.expr = self.visit(node.right)
        match node.op, left, right:
            case ast.Add() | ast.Sub(), _, ast.Constant(0):
                return left
            case ast.Add(), ast.BinOp(op=ast.Mult() | ast.Div()), ast.Constant(1):
                return ast.BinOp(right, ast.Add(), left)
            case ast.Pow(), _, ast.Constant(0.5):
                return ast.Call(ast.Name("sqrt"), [left], [])
            case (
                ast.Div(),
                ast.Call(func=ast.Name("norm"), args=[ast.Name("p" | "g") as x], keywords=[]),
                ast.Call(func=ast.Name("sqrt"), args=[ast.Call(func=ast.Name("numel"))]),
            ):
                return ast.Call(ast.Name("rms"), [x], [])
            case ast.Mult(), _, ast.BinOp(op=ast.Mult() | ast.Div()) if self._rank(left) < 3:
                part = self.visit_BinOp(ast.BinOp(left, ast.Mult(), right.left))
                return ast.BinOp(part, right.op, right.right)
            case ast.Mult(), _, ast.BinOp(left=ast.Constant(1), op=ast.Div(), right=divisor):
                return ast.BinOp(left, ast.Div(), divisor)
            case ast.Mult(), ast.BinOp(left=ast.Constant(1), op=ast.Div(), right=divisor), _:
                return ast.BinOp(right, ast.Div(), divisor)
            case ast.Mult(), _, _ if ast.dump(left) == ast.dump(right) and _is_name(left):
                return ast.BinOp(left, ast.Pow(), ast.Constant(2))
            case ast.Mult(), _, _:
                return self._ordered(ast.BinOp(left, node.op, right))
            case (ast.Add(), _, _) if (other := positive(right)) is not None:
                return ast.BinOp(left, ast.Sub(), other)
            case (ast.Sub(), _, _) if (other := positive(right)) is not None:
                return ast.BinOp(left, ast.Add(), other)
        return ast.BinOp(left, node.op, right)

    def _ordered(self, node: ast.BinOp) -> ast.expr:
        """Return a product with its constants first, then `lr`, its numbers, and its tensors."""
        factors: list[ast.expr] = [node]
        while isinstance(first := factors[0], ast.BinOp) and isinstance(first.op, ast.Mult):
            factors[:1] = [first.left, first.right]
        signs = [each for each in factors if isinstance(each, ast.UnaryOp)]
        factors = [e.operand if isinstance(e, ast.UnaryOp) else e for e in factors]
        factors.sort(key=self._rank)
        if len(signs) % 2:
            factors[0] = _negative(factors[0])
        product = factors[0]
        for each in factors[1:]:
            product = _product(product, each)
        return product

    def _rank(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return 0
        text = ast.unparse(node)
        if text == "lr":
            return 1
        return 2 if names_in(text) - words_in(text) <= self.numbers else 3


def _conjuncts(node: ast.expr) -> list[ast.expr]:
    """Return the conditions of an `and`, or a condition alone."""
    is_and = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)
    return node.values if is_and and isinstance(node, ast.BoolOp) else [node]


def _negative(node: ast.expr) -> ast.expr:
    """Return `-x`: a negative number for a number."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return ast.Constant(-node.value)
    return ast.UnaryOp(ast.USub(), node)


def _product(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.BinOp(left, ast.Mult(), right)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _shrunk(node: ast.expr) -> ast.expr:
    """Return `p - a * p` for `(1 - a) * p`: papers write weight decay so."""
    match node:
        case ast.BinOp(
            left=ast.BinOp(left=ast.Constant(1), op=ast.Sub(), right=part),
            op=ast.Mult(),
            right=ast.Name("p") as p,
        ):
            return ast.BinOp(p, ast.Sub(), _product(part, p))
    return node


def _with_one_inlined(items: Sequence[Item], lasting: set[str]) -> list[Item] | None:
    """Return code without one value that is read once, in a short statement; None if none."""
    for at, item in enumerate(items):
        rest = items[at + 1 :]
        changed: list[Item] | None = None
        if isinstance(item, If):
            later = lasting | names_read(rest)
            then = _with_one_inlined(item.then, later)
            other = _with_one_inlined(item.other, later) if then is None else None
            if then is not None:
                changed = [replace(item, then=tuple(then)), *rest]
            elif other is not None:
                changed = [replace(item, other=tuple(other)), *rest]
        elif item.name not in ("p", "g"):
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
    later = items[at + 1 :]
    if user.name != name and (
        _is_read(later, name) or (name in lasting and not _is_set(later, name))
    ):
        return None
    changed = replace(user, source=substituted(user.source, name, value))
    if _is_complement(value) and f"1 - {name}" in user.source:
        return None  # 1 - (1 - x) is harder to read than the author's two lines
    lines = list(printed([changed]))
    if len(lines) > 1 or len(lines[0]) > SHORT:
        return None
    return [*items[:at], changed, *later]


def _is_complement(value: str) -> bool:
    match _parsed(value):
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
