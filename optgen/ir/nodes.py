"""Expressions and statements: frozen, in the author's order, each with its place in the spec.

An expression never reorders: float order is semantics. Equality ignores places, so two equal
subexpressions of a rule compare (and hash) equal wherever they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a spec file: 1-based line, 1-based column."""

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
    """A name as it stands at one point of the rule; `version` counts its assignments."""

    name: str
    version: int = 0
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A word of the language (an operator or a function) applied to expressions."""

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
    """A sum of terms, in the author's order: the form tensor values take in a plan."""

    terms: tuple[Term, ...]
    place: Place = field(default=NOWHERE, compare=False, repr=False)


Expr: TypeAlias = Const | Ref | Call | Linear


@dataclass(frozen=True, slots=True)
class Assign:
    """The paper's arrow. `quote` holds the statements of the spec this one comes from."""

    target: Ref
    value: Expr
    quote: tuple[str, ...] = ()
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class If:
    """A branch on a condition that has one answer per parameter: never on a tensor."""

    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()
    quote: tuple[str, ...] = ()
    place: Place = field(default=NOWHERE, compare=False, repr=False)


Stmt: TypeAlias = Assign | If
Program: TypeAlias = tuple[Stmt, ...]


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly below this one, in order."""
    match expr:
        case Call(_, args):
            return args
        case Linear(terms):
            return tuple(e for t in terms for e in (t.coefficient, *t.factors, *t.divisors))
        case _:
            return ()


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The same node with every child replaced by `change(child)`."""
    match expr:
        case Call():
            return replace(expr, args=tuple(change(a) for a in expr.args))
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
    """This expression and all below it, parents first, left to right."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def refs(expr: Expr) -> Iterator[Ref]:
    """Every name an expression reads, left to right, repeats included."""
    return (e for e in walk(expr) if isinstance(e, Ref))


def assigns(program: Program) -> Iterator[Assign]:
    """Every assignment of a program, in order, inside branches too."""
    for stmt in program:
        if isinstance(stmt, Assign):
            yield stmt
        else:
            yield from assigns(stmt.then)
            yield from assigns(stmt.orelse)


def expressions(program: Program) -> Iterator[Expr]:
    """Every value and condition of a program, in order."""
    for stmt in program:
        if isinstance(stmt, Assign):
            yield stmt.value
        else:
            yield stmt.condition
            yield from expressions(stmt.then)
            yield from expressions(stmt.orelse)


def names_read(program: Program) -> frozenset[str]:
    """The names that the values and conditions of a program read."""
    return frozenset(ref.name for expr in expressions(program) for ref in refs(expr))


def rename_refs(expr: Expr, change: Callable[[Ref], Ref]) -> Expr:
    """The same expression with every name replaced by `change` of it."""
    if isinstance(expr, Ref):
        return change(expr)
    return rebuild(expr, lambda child: rename_refs(child, change))


def rename_program(program: Program, change: Callable[[Ref], Ref]) -> Program:
    """The same program with every name, read or written, replaced by `change` of it."""
    return tuple(
        replace(stmt, target=change(stmt.target), value=rename_refs(stmt.value, change))
        if isinstance(stmt, Assign)
        else replace(
            stmt,
            condition=rename_refs(stmt.condition, change),
            then=rename_program(stmt.then, change),
            orelse=rename_program(stmt.orelse, change),
        )
        for stmt in program
    )
