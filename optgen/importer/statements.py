"""Code of a rule: assignments and ifs, made from one run's events, and merged from several."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optgen.importer import layout
from optgen.importer.recording import Branch
from optgen.importer.values import PROPERTIES, Value, expression, text


@dataclass(frozen=True)
class Assign:
    """`name = source`, from the author's line `place`."""

    name: str
    source: str
    place: tuple[str, int] = field(default=("", 0), compare=False)
    kind: str = field(default="number", compare=False)
    side: str = ""
    """The kind of a turned or square matrix. Such code is not that of a matrix that is not so."""


@dataclass(frozen=True)
class Choice:
    """A branch of one run: the condition, its key, and the side that was taken."""

    condition: str
    key: str = field(compare=False)
    outcome: bool
    is_tensor: bool = False
    place: tuple[str, int] = field(default=("", 0), compare=False)


@dataclass(frozen=True)
class If:
    """A condition with the code of both sides."""

    condition: str
    then: tuple[Item, ...]
    other: tuple[Item, ...]
    is_tensor: bool = False


Item = Assign | If
Event = Assign | Choice


SHORT = 72
"""The columns of a statement that may take in another one."""
TOTAL = "total"
"""The name of a sum over all parameters that has none of the author's."""
SIDES = ("turned", "rows", "cols")


class HazardError(Exception):
    """A value is read after its name got another one, so one of both needs a name of its own."""

    def __init__(self, value: Value, later: Value) -> None:
        super().__init__(text(value))
        self.value = value
        self.later = later


def events_of(events: Sequence[Value | Branch]) -> list[Event]:
    """Return a run's events as assignments and choices. Unnamed values stand inside others.

    Raises:
        HazardError: a name is overwritten before its value is read.
    """
    made: list[Event] = []
    holds: dict[str, Value] = {}
    for event in events:
        if isinstance(event, Branch):
            _check(event.condition, holds)
            condition = event.condition
            is_tensor = condition.reads_tensors
            made.append(
                Choice(text(condition), condition.key, event.outcome, is_tensor, event.place)
            )
        elif event.name is not None and event.op != "atom":
            for each in event.args:
                _check(each, holds)
            source = ast.unparse(expression(event, is_definition=True))
            if source != event.name:
                kind = event.args[0].kind if event.op == "copy" else event.kind
                side = kind if kind in SIDES else ""
                made.append(Assign(event.name, source, event.place, kind, side))
            holds[event.name] = event
    return made


def _check(value: Value, holds: dict[str, Value]) -> None:
    """Raise an error if a name in a value's text no longer holds the value."""
    if value.op in PROPERTIES:
        return
    if value.name is not None:
        held = holds.get(value.name)
        if held is not None and held is not value and not _is_same_copy(held, value):
            raise HazardError(value, held)
        return
    for each in value.args:
        _check(each, holds)


def _is_same_copy(held: Value, value: Value) -> bool:
    return held.op == "copy" and held.args[0] is value


def names_in(source: str) -> set[str]:
    """Return the names that an expression reads."""
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def assigned(items: Sequence[Item]) -> set[str]:
    """Return the names that code assigns, in branches too."""
    names: set[str] = set()
    for item in items:
        names |= {item.name} if isinstance(item, Assign) else assigned(item.then + item.other)
    return names


def line_of(items: Sequence[Item], name: str) -> tuple[str, int]:
    """Return the author's line of the last assignment to a name; ("", 0) if there is none."""
    for item in reversed(items):
        if isinstance(item, If):
            place = line_of(item.then + item.other, name)
        else:
            place = item.place if item.name == name else ("", 0)
        if place[0]:
            return place
    return "", 0


def names_read(items: Sequence[Item]) -> set[str]:
    """Return the names that code reads."""
    names: set[str] = set()
    for item in items:
        if isinstance(item, Assign):
            names |= names_in(item.source)
        else:
            names |= names_in(item.condition) | names_read(item.then + item.other)
    return names


def local_numbers(items: Sequence[Item], numbers: set[str]) -> set[str]:
    """Return the variables whose every value is computed from numbers."""
    sources: list[tuple[str, str]] = list(assignments(items))
    found = {name for name, _ in sources} - {"p", "g"}
    while True:
        tensors = {n for n, value in sources if names_in(value) - words_in(value) - numbers - found}
        if not tensors & found:
            return found
        found -= tensors


def words_in(value: str) -> set[str]:
    """Return the functions that an expression calls."""
    calls = (n.func for n in ast.walk(ast.parse(value)) if isinstance(n, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name)}


def assignments(items: Sequence[Item]) -> list[tuple[str, str]]:
    made: list[tuple[str, str]] = []
    for item in items:
        if isinstance(item, If):
            made += assignments(item.then) + assignments(item.other)
        else:
            made.append((item.name, item.source))
    return made


def conditions(items: Sequence[Item]) -> list[str]:
    """Return all conditions of code."""
    ifs = [item for item in items if isinstance(item, If)]
    return [c for each in ifs for c in (each.condition, *conditions(each.then + each.other))]


def asked_names(items: Sequence[Item]) -> set[str]:
    """Return the names that conditions read."""
    return set().union(*map(names_in, conditions(items)))


def compared_numbers(items: Sequence[Item]) -> list[tuple[str, float]]:
    """Return the numbers that code compares names with, and the numbers of tuples.

    Of `nu == 1` and `betas[0] > 0.5` they are ("nu", 1) and ("betas[0]", 0.5). The conditions of
    `where` count too.
    """
    sources = [*conditions(items), *(value for _, value in assignments(items))]
    found: list[tuple[str, float]] = []
    for node in (node for each in sources for node in ast.walk(ast.parse(each))):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        for left, right in itertools.pairwise(sides):
            for of, other in ((left, right), (right, left)):
                number = _number(other)
                if isinstance(of, ast.Name | ast.Subscript) and number is not None:
                    found.append((ast.unparse(of), number))
    return list(dict.fromkeys(found))


def _number(node: ast.expr) -> float | None:
    """Return the number of a constant, which may have a sign; None for other expressions."""
    match node:
        case ast.Constant(value=int() | float() as x):
            return x
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as x)):
            return -x
    return None


def asked_counts(items: Sequence[Item]) -> set[int]:
    """Return the whole numbers of conditions that read the step count."""
    found: set[int] = set()
    for item in items:
        if isinstance(item, If):
            found |= asked_counts(item.then + item.other)
            if "t" in names_in(item.condition):
                nodes = ast.walk(ast.parse(item.condition))
                numbers = {node.value for node in nodes if isinstance(node, ast.Constant)}
                found |= {int(x) for x in numbers if isinstance(x, int | float) and x < 1e6}
    return found


def without_dead(items: Sequence[Item], live: set[str]) -> tuple[Item, ...]:
    """Return code without assignments that nothing reads. `live` is changed to what it reads."""
    kept: list[Item] = []
    for item in reversed(items):
        if isinstance(item, Assign):
            if item.name in live:
                live.discard(item.name)
                live |= names_in(item.source)
                kept.append(item)
            continue
        then_live, other_live = set(live), set(live)
        then = without_dead(item.then, then_live)
        other = without_dead(item.other, other_live)
        if then or other:
            live |= then_live | other_live
            live |= names_in(item.condition)
            kept.append(If(item.condition, then, other, item.is_tensor))
    return tuple(reversed(kept))


def live_in(items: Sequence[Item], lasting: set[str]) -> set[str]:
    """Return the names whose values before code matter. `lasting`: those that matter after it."""
    live = set(lasting)
    without_dead(items, live)
    return live


def folded(items: Sequence[Item]) -> list[Item]:
    """Return code in which two neighbouring assignments to one name are one.

    `m = beta1 * m` and `m = m + (1 - beta1) * g` become `m = beta1 * m + (1 - beta1) * g`. Two
    steps of a parameter stay two if one line is too short for both.
    """
    made: list[Item] = []
    for item in items:
        if isinstance(item, If):
            sides = tuple(folded(item.then)), tuple(folded(item.other))
            made.append(If(item.condition, *sides, item.is_tensor))
            continue
        before = made[-1] if made else None
        if (
            isinstance(before, Assign)
            and before.name == item.name
            and num_reads(item.source, item.name) == 1
        ):
            both = replace(item, source=substituted(item.source, {item.name: before.source}))
            if item.name != "p" or is_short(both):
                made[-1] = both
                continue
        made.append(item)
    return made


def is_short(item: Item) -> bool:
    """Tell if a statement stands in one short line."""
    lines = list(printed([item]))
    return len(lines) == 1 and len(lines[0]) <= SHORT


def without_copies(items: Sequence[Item], arguments: set[str]) -> list[Item]:
    """Return code without variables that are only other names of arguments or constants."""
    sources: dict[str, set[str]] = {}
    _collect(items, sources)
    made = list(items)
    for name, found in sources.items():
        source = next(iter(found))
        is_lasting = not names_in(source) - arguments - {"t"}
        if len(found) == 1 and is_lasting and _is_plain(source):
            made = _with_name_replaced(made, name, source)
    return made


def _collect(items: Sequence[Item], sources: dict[str, set[str]]) -> None:
    for item in items:
        if isinstance(item, Assign):
            sources.setdefault(item.name, set()).add(item.source)
        else:
            _collect(item.then + item.other, sources)


def _is_plain(source: str) -> bool:
    node = ast.parse(source, mode="eval").body
    return isinstance(node, ast.Name | ast.Constant | ast.Subscript)


def _with_name_replaced(items: Sequence[Item], name: str, by: str) -> list[Item]:
    """Return code that reads another expression instead of a name, which nothing assigns."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, Assign):
            if item.name != name:
                made.append(replace(item, source=substituted(item.source, {name: by})))
            continue
        then = tuple(_with_name_replaced(item.then, name, by))
        other = tuple(_with_name_replaced(item.other, name, by))
        made.append(If(substituted(item.condition, {name: by}), then, other, item.is_tensor))
    return made


def num_reads(source: str, name: str) -> int:
    """Return how often an expression reads a name."""
    nodes = ast.walk(ast.parse(source))
    return sum(isinstance(node, ast.Name) and node.id == name for node in nodes)


def substituted(source: str, values: Mapping[str, str]) -> str:
    """Return an expression that reads other ones instead of names, all names at once.

    What stands for a name is not searched for names again: `a + b` with b for a, and c for b, is
    `b + c`.
    """

    class Substitution(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            by = values.get(node.id)
            return node if by is None else ast.parse(by, mode="eval").body

    return ast.unparse(Substitution().visit(ast.parse(source, mode="eval")).body)


def with_wide_reductions_first(items: Sequence[Item]) -> list[Item]:
    """Return code in which reductions over all parameters stand outside of branches.

    Only those of the gradients and the parameters as they come are moved.
    """
    found: dict[str, str] = {}
    changed: set[str] = set()

    def visited(part: Sequence[Item], *, is_inside: bool) -> list[Item]:
        made: list[Item] = []
        for item in part:
            if isinstance(item, If):
                then = tuple(visited(item.then, is_inside=True))
                other = tuple(visited(item.other, is_inside=True))
                made.append(If(item.condition, then, other, item.is_tensor))
                continue
            calls = wide_calls(item.source) if is_inside else []
            for call in calls:
                if not names_in(call) & changed and names_in(call) - {"p", "g"} <= _WIDE_WORDS:
                    name = found.setdefault(call, f"{TOTAL}_{len(found) + 1}" if found else TOTAL)
                    item = replace(item, source=item.source.replace(call, name))
            changed.add(item.name)
            made.append(item)
        return made

    rest = visited(items, is_inside=False)
    return [*(Assign(name, call) for call, name in found.items()), *rest]


_WIDE_WORDS = {"sum", "mean", "norm", "max_abs"}


def wide_calls(source: str) -> list[str]:
    """Return the calls with `over=` in an expression."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and any(k.arg == "over" for k in node.keywords)
    ]


def renamed(items: Sequence[Item], name: str, by: str) -> list[Item]:
    """Return code with an expression, such as `betas[0]`, written as a name."""
    pattern = re.compile(rf"(?<!\w){re.escape(name)}")
    made: list[Item] = []
    for item in items:
        if isinstance(item, Assign):
            made.append(replace(item, source=pattern.sub(by, item.source)))
        else:
            then, other = renamed(item.then, name, by), renamed(item.other, name, by)
            made.append(If(pattern.sub(by, item.condition), tuple(then), tuple(other)))
    return made


def printed(items: Sequence[Item], indent: str = "    ", word: str = "if") -> Iterator[str]:
    """Yield the lines of code. `word`: "elif" for a single `if` in an `else`."""
    for item in items:
        if isinstance(item, Assign):
            yield from layout.assignment(indent, item.name, item.source)
            continue
        then, other, condition = item.then, item.other, item.condition
        if not then:
            then, other, condition = other, (), negated(condition)
        yield f"{indent}{word} {layout.source(ast.parse(condition, mode='eval').body)}:"
        yield from printed(then, indent + "    ")
        if len(other) == 1 and isinstance(other[0], If):
            yield from printed(other, indent, "elif")
        elif other:
            yield f"{indent}else:"
            yield from printed(other, indent + "    ")


def negated(condition: str) -> str:
    """Return the opposite of a condition."""
    node = ast.parse(condition, mode="eval").body
    opposite: dict[type[ast.cmpop], ast.cmpop] = {
        ast.Eq: ast.NotEq(),
        ast.NotEq: ast.Eq(),
        ast.Lt: ast.GtE(),
        ast.GtE: ast.Lt(),
        ast.Gt: ast.LtE(),
        ast.LtE: ast.Gt(),
    }
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others):
            return ast.unparse(ast.Compare(left, [opposite[type(op)]], others))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ast.unparse(operand)
    return ast.unparse(ast.UnaryOp(ast.Not(), node))
