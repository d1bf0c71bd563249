"""Rewrite the expressions of a C++ loop for its printer, and answer questions about them."""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.nodes import Assign, Call, Const, Expr, Linear, Program, Term, assigns, rebuild
from optgen.ir.ops import PROPERTIES


def multiply_by_reciprocals(expr: Expr) -> Expr:
    """Return an expression that multiplies by the reciprocals of sizes instead of dividing.

    The quotient of a constant and a size stays, because it is computed before the loop.
    """
    expr = rebuild(expr, multiply_by_reciprocals)
    match expr:
        case Call("/", (value, Call(word, _) as size)) if word in PROPERTIES:
            if not isinstance(value, Const):
                return Call("*", (value, Call("/", (Const(1), size))))
    return expr


def names_rounded_last(body: Program) -> Iterator[str]:
    """Yield the names whose last value is rounded at random to the parameter's dtype."""
    last = {assign.target.name: stmt for stmt in body for assign in assigns((stmt,))}
    for name, stmt in last.items():
        match stmt:
            case Assign(_, Linear((Term(Const(1), (Call("rounded_at_random"),), ()),))):
                yield name


def has_long_latency(expr: Expr) -> bool:
    """Tell whether an expression is a root or a division, whose results take many cycles.

    A loop with such an expression delays its stores, and computes the next elements meanwhile.
    """
    match expr:
        case Call("/" | "sqrt"):
            return True
        case Linear(terms):
            return any(term.divisors for term in terms)
    return False
