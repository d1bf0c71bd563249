"""Rewrite an expression as a paper has it: numbers before tensors, short words, folded numbers."""

from __future__ import annotations

import ast
from fractions import Fraction

from optgen.importer.layout import source
from optgen.importer.statements import names_in, substituted, words_in
from optgen.importer.values import positive


class Order(ast.NodeTransformer):
    """Writes numbers before tensors, and folds what a paper writes shorter."""

    def __init__(self, numbers: set[str], states: set[str]) -> None:
        self.numbers = numbers
        self.states = states

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
            case ast.Call(func=ast.Name("where"), args=[_, x, y]) if ast.dump(x) == ast.dump(y):
                return x
            case ast.Call(
                func=ast.Name("where"),
                args=[a, ast.Call(func=ast.Name("where"), args=[b, x, inner]), outer],
            ) if ast.dump(inner) == ast.dump(outer):
                both = ast.BoolOp(ast.And(), [*_conjuncts(a), *_conjuncts(b)])
                return ast.Call(node.func, [both, x, outer], [])
            case ast.Call(
                func=ast.Name("lerp"),
                args=[a, b, ast.BinOp(left=ast.Constant(1), op=ast.Sub(), right=kept) as new],
            ) if max(self._rank(a), self._rank(b)) < 3:
                return ast.BinOp(_product(kept, a), ast.Add(), self.visit(_product(new, b)))
            case ast.Call(
                func=ast.Name("sqrt"),
                args=[
                    ast.Call(
                        func=ast.Name("mean" | "sum" as word),
                        args=[ast.BinOp(left=x, op=ast.Pow(), right=ast.Constant(2))],
                        keywords=over,
                    )
                ],
            ) if word == "sum" or not over:
                return ast.Call(ast.Name({"mean": "rms", "sum": "norm"}[word]), [x], over)
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

    def _rank(self, node: ast.expr) -> float:
        if isinstance(node, ast.Constant):
            return 0
        text = ast.unparse(node)
        if text == "lr":
            return 1
        names = names_in(text) - words_in(text)
        return 3 if not names <= self.numbers else 2.5 if names & self.states else 2


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


def parsed(value: str) -> ast.expr:
    """Return an expression's syntax."""
    return ast.parse(value, mode="eval").body


def with_number(value: str, name: str, number: int) -> str:
    """Return an expression in which a name has a whole number, without what this takes away.

    `nu * m + (1 - nu) * g` with 1 for `nu` is `m`.
    """
    return source(_Fold().visit(parsed(substituted(value, {name: str(number)}))))


FINITE_WORDS = {"abs", "sign", "minimum", "maximum", "where", "lerp", "sum", "mean", "max_abs"}
"""The functions whose results are finite if their arguments are."""


def _is_finite(node: ast.expr) -> bool:
    """Tell if an expression is finite for all finite numbers: it has no division, power or root."""
    match node:
        case ast.Name() | ast.Constant() | ast.Subscript():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_finite(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            return _is_finite(left) and _is_finite(right)
        case ast.Compare(left=left, comparators=others):
            return all(map(_is_finite, (left, *others)))
        case ast.Call(func=ast.Name(word), args=args):
            return word in FINITE_WORDS and all(map(_is_finite, args))
    return False


class _Fold(ast.NodeTransformer):
    """Leaves out sums with 0, products with 0 or 1, divisions by 1 and powers of 1.

    A product with 0 stays if its other factor may be infinite or NaN, as a quotient may.
    """

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left: ast.expr = self.visit(node.left)
        right: ast.expr = self.visit(node.right)
        match node.op, left, right:
            case (
                ast.Add() | ast.Sub() | ast.Mult() as op,
                ast.Constant(value=int() as a),
                ast.Constant(value=int() as b),
            ):
                results = {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}
                return ast.Constant(results[type(op)])
            case (ast.Add() | ast.Sub(), _, ast.Constant(0)) | (
                ast.Mult() | ast.Div() | ast.Pow(),
                _,
                ast.Constant(1),
            ):
                return left
            case (ast.Mult(), ast.Constant(1), _) | (ast.Add(), ast.Constant(0), _):
                return right
            case (ast.Mult(), ast.Constant(0), other) | (ast.Mult(), other, ast.Constant(0)) if (
                _is_finite(other)
            ):
                return ast.Constant(0)
        return ast.BinOp(left, node.op, right)
