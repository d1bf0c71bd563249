"""Write norms of a part as roots of sums, where an argument of another part is called `norm`.

In a spec, such a name is an argument or a function, and not both.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from optgen.spec.composition.parts import Part

_REDUCTION_OF_SQUARES = {"norm": "sum", "rms": "mean"}
"""For each function, the reduction of the squares: the function is its square root."""


class _SpellOut(ast.NodeTransformer):
    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id=name), args=[x], keywords=scope) if name in self.names:
                square = ast.BinOp(x, ast.Pow(), ast.Constant(2))
                reduction = ast.Call(
                    ast.Name(_REDUCTION_OF_SQUARES[name], ast.Load()), [square], scope
                )
                root = ast.Call(ast.Name("sqrt", ast.Load()), [reduction], [])
                return ast.fix_missing_locations(ast.copy_location(root, node))
        return node


def spell_out_norms(part: Part, arguments: Collection[str]) -> Part:
    """Return a part whose calls of `norm` or `rms` are spelled out if an argument has that name.

    `norm(x)` becomes `sqrt(sum(x ** 2))`, and `rms(x)` becomes `sqrt(mean(x ** 2))`.
    """
    clashes = _REDUCTION_OF_SQUARES.keys() & set(arguments)
    if not clashes:
        return part
    part = part.copy()
    for node in (part.node, *part.definitions, *part.programs):
        _SpellOut(clashes).visit(node)
    return part
