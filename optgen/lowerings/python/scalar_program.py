"""Print the scalar program as Python, for a bucket or for one parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from optgen.ir.generated_names import plural
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    Ref,
    assigns,
    expressions,
    filter_assigns,
    names_read,
    refs,
)
from optgen.ir.plan import Plan
from optgen.lowerings.python.expression_printer import PythonPrinter, statements
from optgen.lowerings.python.literals import comment
from optgen.passes.name_values import is_item, reuse_item_names


@dataclass(frozen=True)
class ScalarText:
    """Texts of the code that reads and writes the step count and scalar states.

    `param` is the parameter whose properties are read; in a bucket, they are equal for all
    parameters. `advance` adds one to the step count and returns it. `tensor` is the 0-dim tensor of
    a scalar state, `read` is its value, and `store` writes a new value and returns it. `{0}` stands
    for the name of the list of the state's tensors, and `{1}` for the new value.
    """

    param: str
    advance: str
    tensor: str
    read: str
    store: str


BUCKET = ScalarText(
    param="params[0]",
    advance="advance(state_steps)",
    tensor="{0}[0]",
    read="{0}[0].item()",
    store="store({0}, {1})",
)
ONE_PARAM = ScalarText(
    param="params[index]",
    advance="advance_one(state_steps[index], capturable)",
    tensor="{0}[index].clone()",  # autograd may need the old value
    read="read_one({0}[index], capturable)",
    store="store_one({0}[index], {1}, capturable)",
)


def scalar_lines(plan: Plan, texts: ScalarText, names_read_later: Collection[str]) -> list[str]:
    """Return the lines of the scalar program, the step count first.

    A name that neither these lines nor later ones read (`names_read_later`) is left out.
    """
    states = {s.symbol for s in plan.algorithm.scalar_states()}
    needed = states.union(names_read_later)
    plan = replace(plan, scalars=_without_unread(reuse_item_names(plan.scalars), needed))
    read_after_store = {r.name for r in _refs_read(plan) if r.version > 0}
    param = {plan.algorithm.param: texts.param}
    printer = PythonPrinter(param, {})

    def line(stmt: Assign) -> str:
        name = stmt.target.name
        if name not in states:
            return f"{name} = {printer.text(stmt.value)}"
        tensor = texts.tensor.format(plural(name))
        value = PythonPrinter(param | {name: tensor}, {}).text(stmt.value)
        stored = texts.store.format(plural(name), value)
        return f"{name} = {stored}" if name in read_after_store else stored

    copies = _copies_of_old_values(plan)
    program = tuple(s for s in plan.scalars if s not in copies.values())
    return [
        *_opening_lines(plan, texts, copies),
        *_with_unpackings(statements(program, printer, line), plan),
    ]


def _without_unread(program: Program, needed: set[str]) -> Program:
    """Return the program without names that nothing reads, such as the second weight of a lerp.

    The items of a tuple stay, because one line unpacks them.
    """
    read = needed | names_read(program)
    shorter = filter_assigns(program, lambda a: a.target.name in read or is_item(a.value))
    return program if shorter == program else _without_unread(shorter, needed)


def _refs_read(plan: Plan) -> Iterator[Ref]:
    """Yield every name that the scalar program or a phase reads, as often as it is read."""
    return (r for e in (*expressions(plan.scalars), *plan.values()) for r in refs(e))


def _copies_of_old_values(plan: Plan) -> dict[str, Assign]:
    """Map a scalar state to the statement that copies its old value, if nothing else reads it."""
    reads = Counter(r for r in _refs_read(plan) if r.version == 0)
    branches = tuple(s for s in plan.scalars if isinstance(s, If))
    states = {s.symbol for s in plan.algorithm.scalar_states()}
    unbranched_states = states - {a.target.name for a in assigns(branches)}
    return {
        stmt.value.name: stmt
        for stmt in plan.scalars
        if isinstance(stmt, Assign) and isinstance(stmt.value, Ref)
        if stmt.target.name not in states
        if stmt.value.name in unbranched_states and reads[stmt.value] == 1
    }


def _opening_lines(plan: Plan, texts: ScalarText, copies: Mapping[str, Assign]) -> list[str]:
    """Return the lines that advance the step and read the old values of scalar states."""
    lines = []
    if plan.algorithm.step:
        is_read = Ref(plan.algorithm.step) in set(_refs_read(plan))
        lines.append(f"{plan.algorithm.step} = {texts.advance}" if is_read else texts.advance)
    for state in plan.algorithm.scalar_states():
        other_values = [
            *expressions(_without_assigns_to(plan.scalars, state.symbol)),
            *plan.values(),
        ]
        branches = tuple(s for s in plan.scalars if isinstance(s, If))
        in_branch = any(a.target.name == state.symbol for a in assigns(branches))
        if in_branch or Ref(state.symbol) in {r for e in other_values for r in refs(e)}:
            copy = copies.get(state.symbol)
            name = copy.target.name if copy else state.symbol
            lines.append(f"{name} = {texts.read.format(plural(state.symbol))}")
    return lines


def _without_assigns_to(program: Program, name: str) -> Program:
    """Return the program without the assignments to a name."""
    return filter_assigns(program, lambda a: a.target.name != name)


def _with_unpackings(lines: list[str], plan: Plan) -> list[str]:
    """Return lines with `beta1 = betas[0]` and `beta2 = betas[1]` merged into the author's line."""
    items: dict[str, list[Assign]] = {}
    for stmt in assigns(plan.scalars):
        if stmt.quote and is_item(stmt.value):
            items.setdefault(stmt.quote[0], []).append(stmt)
    merged = list(lines)
    for quote, unpacking in items.items():
        names = ", ".join(a.target.name for a in unpacking)
        if f"{names} = {_tuple_name(unpacking[0].value)}" == quote:
            start = [line.strip() for line in merged].index(comment(quote))
            indent = merged[start].removesuffix(comment(quote))  # the line may be in a branch
            merged[start : start + len(unpacking) + 1] = [indent + quote]
    return merged


def _tuple_name(value: Expr) -> str:
    match value:
        case Call("item", (Ref(name), _)):
            return name
    raise TypeError(f"not an item of a tuple: {value!r}")
