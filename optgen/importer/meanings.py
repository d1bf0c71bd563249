"""Meanings of arguments and states that a found rule shows, in the words of the catalogue.

An argument's name proves nothing. Each text here stands for a form of code that says it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from optgen.importer.algebra import parsed
from optgen.importer.layout import source
from optgen.importer.statements import Assign, If, Item, assigned, assignments, names_in, names_read

SHRINK = "Shrink the parameter itself, as AdamW does, not through the gradient"
PROXIMAL = "Decay as AdamW does, not by a proximal step"
NO_DECAY = "Shrink the parameter itself; without it, there is no weight decay"
LARGEST = "Divide by the largest second moment so far, not by the present one"
LOOK_AHEAD = "Look ahead along the momentum, after Nesterov"
DAMPENING = "Fraction of the gradient that is not added to the momentum"
CLIP = "Norm to which all gradients together are clipped; 0 does not clip"
SHARE = "Share of the running average beside the present value"
SHARES = "Shares of the running averages beside the present values"


def meanings(
    items: Sequence[Item], inits: Mapping[str, str], parts: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return texts for arguments.

    Args:
        items: the code.
        inits: the states' names, with the arguments or numbers that they begin as.
        parts: the arguments that are tuples, with the names of their numbers in the code.
    """
    found = dict(_of_flags(items))
    averages = {state for state in inits if _is_average(state, items)}
    for name, value in assignments(items):
        for node in ast.walk(parsed(value)):
            found |= dict(_of_numbers(node, name, set(inits), averages, items))
    for item in _ifs(items):
        if (number := _number_that_is_there(item.condition)) is not None:
            for _, value in assignments(item.then):
                found |= dict(_of_clips(parsed(value), number, items))
    for name in {init for init in inits.values() if init.isidentifier() and init != "p"}:
        begun = [state for state, init in inits.items() if init == name]
        found.setdefault(name, f"Start value of {' and '.join(begun)}")
    for name, numbers in parts.items():
        if all(found.get(each) == SHARE for each in numbers):
            found[name] = SHARES
    return found


def _of_flags(items: Sequence[Item]) -> Iterator[tuple[str, str]]:
    """Yield flags with what the sides of their ifs say."""
    ifs = list(_ifs(items))
    asked = [item.condition for item in ifs]
    for item in ifs:
        then, other = item.then, item.other
        match parsed(item.condition):
            case ast.Name(name):
                if _is_shrinking(then) and _is_coupled(other):
                    yield name, SHRINK
                elif (decay := _decay_times_lr(then, other)) is not None:
                    yield name, f"Decay by `{decay}` alone, not times `lr`"
                elif _has_largest(then, items):
                    yield name, LARGEST
                elif _looks_ahead(then, other):
                    yield name, LOOK_AHEAD
            case ast.BoolOp(op=ast.And(), values=[ast.Name(decay), ast.Name(name)]) if (
                _is_shrinking(then) and not other and decay in names_read(then)
            ):
                opposite = f"{decay} and not {name}"
                if sum(name in names_in(each) for each in asked) == 1:
                    yield name, NO_DECAY
                elif any(x.condition == opposite and _is_proximal(x.then, decay) for x in ifs):
                    yield name, PROXIMAL


def _ifs(items: Sequence[Item]) -> Iterator[If]:
    for item in items:
        if isinstance(item, If):
            yield item
            yield from _ifs(item.then + item.other)


def _is_shrinking(side: Sequence[Item]) -> bool:
    """Tell if code only makes the parameter smaller by a share of itself."""
    shares = [_share(value) for _, value in assignments(side)]
    return assigned(side) == {"p"} and None not in shares


def _share(value: str) -> ast.expr | None:
    """Return a of `p - a * p`, a number without `p`; None for other values."""
    match parsed(value):
        case ast.BinOp(
            left=ast.Name("p"),
            op=ast.Sub(),
            right=ast.BinOp(left=share, op=ast.Mult(), right=ast.Name("p")),
        ) if not names_in(ast.unparse(share)) & {"p", "g"}:
            return share
    return None


def _is_coupled(side: Sequence[Item]) -> bool:
    """Tell if code is `g = g + a * p` alone."""
    if len(side) != 1 or not isinstance(only := side[0], Assign) or only.name != "g":
        return False
    match parsed(only.source):
        case ast.BinOp(
            left=ast.Name("g"), op=ast.Add(), right=ast.BinOp(op=ast.Mult(), right=ast.Name("p"))
        ):
            return True
    return False


def _decay_times_lr(then: Sequence[Item], other: Sequence[Item]) -> str | None:
    """Return a of the sides `p - a * p` and `p - lr * a * p`; None for other sides."""
    shares = [
        _share(side[0].source) if len(side) == 1 and isinstance(side[0], Assign) else None
        for side in (then, other)
    ]
    match shares[0], shares[1]:
        case ast.Name(decay), ast.BinOp(left=ast.Name("lr"), op=ast.Mult(), right=ast.Name(name)):
            return decay if decay == name else None
    return None


def _is_proximal(side: Sequence[Item], decay: str) -> bool:
    """Tell if code divides the parameter by a sum with its decay."""
    values = assignments(side)
    return len(values) == 1 and values[0] == ("p", f"p / (1 + lr * {decay})")


def _has_largest(side: Sequence[Item], items: Sequence[Item]) -> bool:
    """Tell if code keeps the largest value so far of a mean of squares, and divides by it."""
    for name, value in assignments(side):
        match parsed(value):
            case ast.Call(func=ast.Name("maximum"), args=[ast.Name(kept), ast.Name(moment)]):
                is_largest = kept == name and moment in means_of_squares(items)
                return is_largest and name in _names_in_divisors(items)
    return False


def _names_in_divisors(items: Sequence[Item]) -> set[str]:
    """Return the names that code divides by, and those that a divisor is computed from."""
    values = assignments(items)
    found: set[str] = set()
    for node in (node for _, value in values for node in ast.walk(parsed(value))):
        match node:
            case ast.BinOp(op=ast.Div(), right=divisor):
                found |= names_in(ast.unparse(divisor))
            case ast.BinOp(left=base, op=ast.Pow(), right=ast.UnaryOp(op=ast.USub())):
                found |= names_in(ast.unparse(base))
    while True:
        more = set[str]().union(*(names_in(value) for name, value in values if name in found))
        if more <= found:
            return found
        found |= more


def _looks_ahead(then: Sequence[Item], other: Sequence[Item]) -> bool:
    """Tell if code is `x = g + a * m`, and `x = m` on the other side."""
    if [name for name, _ in assignments(then)] != [name for name, _ in assignments(other)]:
        return False
    if len(then) != 1 or not isinstance(then[0], Assign) or not isinstance(other[0], Assign):
        return False
    match parsed(then[0].source):
        case ast.BinOp(
            left=ast.Name("g"), op=ast.Add(), right=ast.BinOp(op=ast.Mult(), right=ast.Name(m))
        ):
            return other[0].source == m
    return False


def _of_numbers(
    node: ast.AST, name: str, states: set[str], averages: set[str], items: Sequence[Item]
) -> Iterator[tuple[str, str]]:
    """Yield numbers with what a part of an assignment to `name` says.

    `averages`: the states that are running averages.
    """
    match node:
        case ast.BinOp(
            left=ast.BinOp(left=kept, op=ast.Mult(), right=ast.Name(state)),
            op=ast.Add(),
            right=ast.BinOp(
                left=ast.BinOp(left=ast.Constant(1), op=ast.Sub(), right=ast.Name(number)),
                op=ast.Mult(),
                right=other,
            ),
        ) if state in states:
            if source(kept) == number and name != state and state in averages:
                yield number, SHARE
            elif source(kept) != number and name == state and source(other) == "g":
                yield number, DAMPENING
        case ast.BinOp(
            op=ast.Add(), right=ast.BinOp(left=ast.Name(number), op=ast.Mult(), right=ast.Name(x))
        ) if x in states and name not in states and _num_uses(items, number) == 1:
            yield number, f"Weight of {x}"


def _number_that_is_there(condition: str) -> str | None:
    """Return x of the conditions `x`, `x > 0` and `x != 0`; None for other conditions."""
    match parsed(condition):
        case ast.Name(number):
            return number
        case ast.Compare(
            left=ast.Name(number), ops=[ast.Gt() | ast.NotEq()], comparators=[ast.Constant(0)]
        ):
            return number
    return None


def _of_clips(value: ast.expr, number: str, items: Sequence[Item]) -> Iterator[tuple[str, str]]:
    """Yield a number with its meaning if a value is a clip to it. 0 takes no such value."""
    for node in ast.walk(value):
        match node:
            case ast.Call(
                func=ast.Name("minimum"),
                args=[ast.BinOp(left=ast.Name(name), op=ast.Div(), right=norm), ast.Constant(1)],
            ) if name == number and names_in(ast.unparse(norm)) & _norms_of_all(items):
                yield number, CLIP


def _norms_of_all(items: Sequence[Item]) -> set[str]:
    """Return the variables that are norms of all gradients together, or sums with one."""
    values = assignments(items)
    whole = ast.dump(parsed("norm(g, over='all')"))
    found = {name for name, value in values if ast.dump(parsed(value)) == whole}
    for name, value in values:
        match parsed(value):
            case ast.BinOp(left=ast.Name(norm), op=ast.Add()) if norm in found:
                found.add(name)
    return found


def _num_uses(items: Sequence[Item], name: str) -> int:
    values = [value for _, value in assignments(items)]
    return sum(
        isinstance(node, ast.Name) and node.id == name
        for value in values
        for node in ast.walk(parsed(value))
    )


def means_of_squares(items: Sequence[Item]) -> set[str]:
    """Return the names that code computes as running averages of squares, with a number added."""
    values = assignments(items)
    others = {name for name, value in values if not _is_square(parsed(value), set())}
    squares = {name for name, _ in values} - others
    averaged = ((name, _averaged(parsed(value), name)) for name, value in values)
    return {name for name, new in averaged if new is not None and _is_square(new, squares)}


def _is_square(node: ast.expr, squares: set[str]) -> bool:
    match node:
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(2)):
            return True
        case ast.Name(name):
            return name in squares
    return False


def _is_average(state: str, items: Sequence[Item]) -> bool:
    """Tell if a state is a running average: each value of it that reads it is one."""
    values = [value for name, value in assignments(items) if name == state]
    made = [_averaged(parsed(value), state) for value in values if state in names_in(value)]
    return bool(made) and None not in made


def _averaged(node: ast.expr, name: str) -> ast.expr | None:
    """Return the new part of a running average that is the next value of `name`; else None."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Name("eps")):
            return _averaged(left, name)
        case ast.Call(func=ast.Name("lerp"), args=[ast.Name(kept), new, _]) if kept == name:
            return new
        case ast.BinOp(
            left=ast.BinOp(left=decay, op=ast.Mult(), right=ast.Name(kept)),
            op=ast.Add(),
            right=ast.BinOp(
                left=ast.BinOp(left=ast.Constant(1), op=ast.Sub(), right=other),
                op=ast.Mult(),
                right=new,
            ),
        ) if kept == name and ast.dump(decay) == ast.dump(other):
            return new
    return None
