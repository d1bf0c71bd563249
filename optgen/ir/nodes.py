"""Define expressions and statements: frozen nodes, each with its place in the spec.

Operands keep the author's order, because the order of floating-point operations affects results.
Equality and hashes ignore places, so equal subexpressions compare equal wherever they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Place in a spec file: line and column, counted from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE = Place("<generator>", 1, 1)


@dataclass(frozen=True, slots=True)
class Const:
    """A literal: a number, a truth value, a choice's name, or None."""

    value: float | int | bool | str | None
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """A name at one point of the rule; in SSA form, `version` counts its assignments so far."""

    name: str
    version: int = 0
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """An op of the language (an operator or a function) applied to expressions."""

    op: str
    args: tuple[Expr, ...]
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Term:
    """`coefficient * factors / divisors`: a scalar times tensors, over tensors.

    A plan's coefficient is a number, a named scalar, or the negation of a named scalar.
    """

    coefficient: Expr
    factors: tuple[Expr, ...] = ()
    divisors: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum of terms, in the author's order: the form of tensor values in a plan."""

    terms: tuple[Term, ...]
    place: Place = field(default=NOWHERE, compare=False, repr=False)


Expr: TypeAlias = Const | Ref | Call | Linear


@dataclass(frozen=True, slots=True)
class Assign:
    """An assignment. `quote` holds the spec's statements from which it was made, as text."""

    target: Ref
    value: Expr
    quote: tuple[str, ...] = ()
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class If:
    """A branch on a condition that has one value per parameter, so never on a tensor."""

    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()
    quote: tuple[str, ...] = ()
    place: Place = field(default=NOWHERE, compare=False, repr=False)


Stmt: TypeAlias = Assign | If
Program: TypeAlias = tuple[Stmt, ...]


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the operands of an expression, in order."""
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Linear):
        return tuple(e for t in expr.terms for e in (t.coefficient, *t.factors, *t.divisors))
    return ()


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the node with every operand replaced by `change(operand)`."""
    match expr:
        case Call():
            args = tuple([change(a) for a in expr.args])
            unchanged = all(map(is_, args, expr.args))
            return expr if unchanged else Call(expr.op, args, expr.place)
        case Linear():
            terms = tuple(
                Term(
                    change(t.coefficient),
                    tuple(change(f) for f in t.factors),
                    tuple(change(d) for d in t.divisors),
                )
                for t in expr.terms
            )
            return replace(expr, terms=terms)
        case _:
            return expr


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield an expression and all its subexpressions, parents first, left to right."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack += children(node)[::-1]


def refs(expr: Expr) -> Iterator[Ref]:
    """Yield every name that an expression reads, left to right, with repeats."""
    return (e for e in walk(expr) if isinstance(e, Ref))


def assigns(program: Program) -> Iterator[Assign]:
    """Yield every assignment of a program in order, including those inside branches."""
    for stmt in program:
        if isinstance(stmt, Assign):
            yield stmt
        else:
            yield from assigns(stmt.then)
            yield from assigns(stmt.orelse)


def truth(condition: Expr, known: Callable[[Expr], bool | None]) -> bool | None:
    """Return the value of a condition as far as the known values of its operands decide it.

    `known` returns the value of an operand of `and`, `or` and `not`, or None.
    """
    match condition:
        case Call("not", (inner,)):
            value = truth(inner, known)
            return None if value is None else not value
        case Call("and" | "or" as op, args):
            values = [truth(arg, known) for arg in args]
            deciding = op == "or"
            undecided = None if None in values else not deciding
            return deciding if deciding in values else undecided
    return known(condition)


def names_assigned(program: Program) -> set[str]:
    """Return the names that a program assigns."""
    return {stmt.target.name for stmt in assigns(program)}


def always_assigned(program: Program) -> set[str]:
    """Return the names that a program assigns on every path, whatever the versions."""
    return on_every_path(program, lambda target: target.name)


def on_every_path(program: Program, key: Callable[[Ref], T]) -> set[T]:
    """Return `key(target)` for the targets that a program assigns on every path.

    Targets with equal keys are treated as one.
    """
    assigned: set[T] = set()
    for stmt in program:
        if isinstance(stmt, Assign):
            assigned.add(key(stmt.target))
        else:
            assigned |= on_every_path(stmt.then, key) & on_every_path(stmt.orelse, key)
    return assigned


def expressions(program: Program) -> Iterator[Expr]:
    """Yield every assigned value and every condition of a program, in order."""
    for stmt in program:
        if isinstance(stmt, Assign):
            yield stmt.value
        else:
            yield stmt.condition
            yield from expressions(stmt.then)
            yield from expressions(stmt.orelse)


def names_read(program: Program) -> frozenset[str]:
    """Return the names that the values and conditions of a program read."""
    return frozenset(ref.name for ref in refs_read(program))


def refs_read(*programs: Program) -> set[Ref]:
    """Return the names, with their versions, that values and conditions of programs read."""
    return {ref for program in programs for expr in expressions(program) for ref in refs(expr)}


def rename_refs(expr: Expr, change: Callable[[Ref], Ref]) -> Expr:
    """Return the expression with every name `ref` replaced by `change(ref)`."""
    if isinstance(expr, Ref):
        return change(expr)
    return rebuild(expr, lambda child: rename_refs(child, change))


def map_statements(
    program: Program,
    change: Callable[[Assign], Stmt | Program],
    change_condition: Callable[[Expr], Expr] = lambda condition: condition,
) -> Program:
    """Return the program with each assignment replaced by one or several statements.

    `change` returns the statements. Branches stay, with changed conditions.
    """
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            changed = change(stmt)
            out += changed if isinstance(changed, tuple) else (changed,)
        else:
            out.append(
                replace(
                    stmt,
                    condition=change_condition(stmt.condition),
                    then=map_statements(stmt.then, change, change_condition),
                    orelse=map_statements(stmt.orelse, change, change_condition),
                )
            )
    return tuple(out)


def rename_program(program: Program, change: Callable[[Ref], Ref]) -> Program:
    """Return the program with every name `ref`, read or written, replaced by `change(ref)`."""

    def renamed(expr: Expr) -> Expr:
        return rename_refs(expr, change)

    return map_statements(
        program,
        lambda stmt: replace(stmt, target=change(stmt.target), value=renamed(stmt.value)),
        renamed,
    )


def map_expressions(program: Program, change: Callable[[Expr], Expr]) -> Program:
    """Return the program with `change` applied to every value and every condition."""
    return map_statements(program, lambda stmt: replace(stmt, value=change(stmt.value)), change)


def map_values(program: Program, change: Callable[[Expr], Expr]) -> Program:
    """Return the program with `change` applied to the value of every assignment."""
    return map_statements(program, lambda stmt: replace(stmt, value=change(stmt.value)))


class RuleError(Exception):
    """A rule that cannot be planned: the place, what is wrong, and a hint."""

    def __init__(self, place: Place, message: str, hint: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.hint = hint


def is_self_copy(stmt: Assign) -> bool:
    """Tell whether a statement only copies a name to its next version."""
    source = copy_source(stmt)
    return source is not None and source.name == stmt.target.name


def copy_source(stmt: Assign) -> Ref | None:
    """Return the source of a statement that is a plain copy, else None."""
    source = only_factor(stmt.value)
    return source if isinstance(source, Ref) else None


def only_factor(value: Expr) -> Expr:
    """Return the factor of a linear form `1 * factor`; return any other value as it is."""
    match value:
        case Linear((Term(Const(1), (factor,), ()),)):
            return factor
        case _:
            return value


def filter_assigns(program: Program, keep: Callable[[Assign], bool]) -> Program:
    """Return the program with only the assignments that `keep` accepts, without empty branches."""
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            out += [stmt] if keep(stmt) else []
            continue
        then, orelse = filter_assigns(stmt.then, keep), filter_assigns(stmt.orelse, keep)
        if then or orelse:
            out.append(replace(stmt, then=then, orelse=orelse))
    return tuple(out)


def replace_reads(expr: Expr, new_names: Mapping[Ref, Ref]) -> Expr:
    """Return an expression with its reads renamed; the state names in `fresh` stay."""
    match expr:
        case Ref():
            return new_names.get(expr, expr)
        case Call("fresh", _):
            return expr
    return rebuild(expr, lambda child: replace_reads(child, new_names))
