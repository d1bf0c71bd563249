"""Move rows and columns by index, where a rule multiplies with a permutation matrix.

`S = descending(x)` is a matrix of zeros and ones. If a rule uses it in `S @ x` and
`x @ transpose(S)` only, then a vector of indices, the *order* of the rows or columns, replaces the
matrix: the product becomes an indexing of rows or columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    assigns,
    children,
    expressions,
    map_expressions,
    only_factor,
    rebuild,
)


def permute_by_index(program: Program, stored: Collection[str]) -> Program:
    """Return the program with orders in place of permutation matrices.

    A permutation that is stored, or used outside of such products, stays a matrix.
    """
    orders = frozenset(a.target.name for a in assigns(program) if _is_permutation(a.value))
    orders -= frozenset(stored)
    orders -= {a.target.name for a in assigns(program) if not _is_permutation(a.value)}
    orders -= {name for expr in expressions(program) for name in _read_otherwise(expr, orders)}
    return _with_orders(map_expressions(program, lambda e: _with_permuted_calls(e, orders)), orders)


def _is_permutation(value: Expr) -> bool:
    value = only_factor(value)
    return isinstance(value, Call) and value.op == "descending"


def _permuted_call(expr: Expr, orders: frozenset[str]) -> Call | None:
    """Return a product with a permutation as `permuted_rows` or `permuted_columns`.

    The permutation is a name of `orders`, or a `descending(…)` in the product itself. Return None
    for any other expression.
    """
    match expr:
        case Call("@", (Ref(name) as order, x)) if name in orders:
            return Call("permuted_rows", (x, order))
        case Call("@", (x, Call("transpose", (Ref(name) as order,)))) if name in orders:
            return Call("permuted_columns", (x, order))
        case Call("@", (Call("descending", numbers), x)):
            return Call("permuted_rows", (x, Call("descending_order", numbers)))
        case Call("@", (x, Call("transpose", (Call("descending", numbers),)))):
            return Call("permuted_columns", (x, Call("descending_order", numbers)))
    return None


def _read_otherwise(expr: Expr, orders: frozenset[str]) -> Iterator[str]:
    """Yield the names that an expression reads, except permutations that it multiplies with."""
    if isinstance(expr, Ref):
        yield expr.name
    call = _permuted_call(expr, orders)
    operands = children(call or expr)
    if call and isinstance(call.args[1], Ref):
        operands = call.args[:1]
    for child in operands:
        yield from _read_otherwise(child, orders)


def _with_permuted_calls(expr: Expr, orders: frozenset[str]) -> Expr:
    call = _permuted_call(expr, orders)
    return rebuild(call or expr, lambda child: _with_permuted_calls(child, orders))


def _with_orders(program: Program, orders: frozenset[str]) -> Program:
    """Return the program with an order in place of each permutation matrix of these names."""

    def with_order(stmt: Assign) -> Assign:
        if stmt.target.name not in orders:
            return stmt
        return replace(stmt, value=Call("descending_order", children(only_factor(stmt.value))))

    return tuple(
        with_order(stmt)
        if isinstance(stmt, Assign)
        else replace(
            stmt,
            then=_with_orders(stmt.then, orders),
            orelse=_with_orders(stmt.orelse, orders),
        )
        for stmt in program
    )
