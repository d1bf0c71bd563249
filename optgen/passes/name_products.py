"""Compute equal products and decompositions of matrices once, in a rule on whole matrices.

A product that is used several times gets a statement and a name of its own. The same holds for
decompositions; "product" means both in this file. A power uses its operand several times, because
a square is computed as `x * x`. Elementwise ops are cheap beside products and stay in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import free_name
from optgen.ir.kinds import Kind, declared_kinds
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    Ref,
    Stmt,
    assigns,
    children,
    expressions,
    rebuild,
)
from optgen.ir.ops import LINEAR_ALGEBRA
from optgen.passes.matrix_word_names import matrix_word_name

_VIEWS = ("transpose", "diag")  # they compute nothing


def name_products(algorithm: Algorithm) -> Algorithm:
    """Return an SSA rule that computes no product or decomposition twice."""
    kinds = declared_kinds(algorithm)
    used_names = {a.target.name for a in assigns(algorithm.rule)} | set(kinds)
    namer = _Namer(_repeated_products(expressions(algorithm.rule)), kinds, used_names)
    return replace(algorithm, rule=namer.program(algorithm.rule, {}))


def _repeated_products(values: Iterable[Expr]) -> frozenset[Expr]:
    """Return the products that are used several times.

    Several equal products use their operands once.
    """
    uses: Counter[Expr] = Counter()

    def count(expr: Expr) -> None:
        uses[expr] += 1
        if uses[expr] == 1 or not _is_product(expr):
            for child in children(expr):
                count(child)
                if isinstance(expr, Call) and expr.op == "**":
                    count(child)

    for value in values:
        count(value)
    return frozenset(expr for expr, num_uses in uses.items() if num_uses > 1 and _is_product(expr))


def _is_product(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op in LINEAR_ALGEBRA and expr.op not in _VIEWS


@dataclass
class _Namer:
    """Namer of repeated products. `known` in its methods maps products to their names."""

    repeated: frozenset[Expr]
    kinds: Mapping[str, Kind]
    used_names: set[str]
    new_statements: list[Assign] = field(default_factory=list)  # before the present statement

    def program(self, program: Program, known: dict[Expr, Ref]) -> Program:
        """Rewrite a block. Names that an arm gives to products are not known after the branch."""
        out: list[Stmt] = []
        for stmt in program:
            self.new_statements = []
            if isinstance(stmt, Assign):
                rewritten: Stmt = replace(stmt, value=self._statement_value(stmt, known))
            else:
                rewritten = replace(stmt, condition=self._with_names(stmt.condition, known))
            out += [replace(s, quote=stmt.quote, place=stmt.place) for s in self.new_statements]
            if isinstance(rewritten, If):
                then, orelse = (
                    self.program(arm, dict(known)) for arm in (rewritten.then, rewritten.orelse)
                )
                rewritten = replace(rewritten, then=then, orelse=orelse)
            out.append(rewritten)
        return tuple(out)

    def _statement_value(self, stmt: Assign, known: dict[Expr, Ref]) -> Expr:
        """Rewrite a statement's value.

        A repeated product without a name stays the value, and is known by the statement's target.
        """
        if stmt.value not in self.repeated or stmt.value in known:
            return self._with_names(stmt.value, known)
        known[stmt.value] = stmt.target
        return rebuild(stmt.value, lambda child: self._with_names(child, known))

    def _with_names(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        if expr in known:
            return known[expr]
        inner = rebuild(expr, lambda child: self._with_names(child, known))
        if expr not in self.repeated:
            return inner
        known[expr] = Ref(self._unused_name(expr))
        self.new_statements.append(Assign(known[expr], inner))
        return known[expr]

    def _unused_name(self, expr: Expr) -> str:
        """Return an unused name for a product or a decomposition."""
        assert isinstance(expr, Call)
        name = free_name(matrix_word_name(expr, self.kinds), self.used_names)
        self.used_names.add(name)
        return name
