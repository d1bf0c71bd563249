"""Give every reduction and every matrix op a statement and a name of its own.

A reduction or a matrix op ends a phase, so a plan is cut at these statements. Equal reductions of
one parameter are computed once. Equal reductions over several parameters are not merged: a plan for
another shape might not merge them, and all parameters must take part in the same reductions. After
a matrix op, reductions are computed again, because no number, row or column is kept across it. The
operand of a matrix op gets a name too, under which the sweep before the op stores it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.generated_names import free_name
from optgen.ir.kinds import declared_kinds
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, Stmt, assigns, rebuild
from optgen.ir.ops import OPS

_PHASE_ENDING_CATEGORIES = ("reduction", "wide reduction", "matrix")


def name_reductions(algorithm: Algorithm) -> Algorithm:
    """Return an SSA rule in which each reduction or matrix op is the whole value of a statement."""
    declared = set(declared_kinds(algorithm))
    used_names = {a.target.name for a in assigns(algorithm.rule)} | declared
    assign_counts = Counter(a.target for a in assigns(algorithm.rule))
    namer = _Namer(used_names, declared, {ref for ref, count in assign_counts.items() if count > 1})
    return replace(algorithm, rule=namer.program(algorithm.rule, {}))


def ends_phase(expr: Expr) -> bool:
    """Tell whether a value is a reduction or a matrix op, known only when its phase has ended."""
    return isinstance(expr, Call) and OPS[expr.op].category in _PHASE_ENDING_CATEGORIES


def is_matrix_op(expr: Expr) -> bool:
    """Tell whether a value is the result of a matrix op."""
    return isinstance(expr, Call) and OPS[expr.op].category == "matrix"


def _drop_reductions(known: dict[Expr, Ref]) -> None:
    """Drop the known reductions, because after a matrix op they are computed again."""
    for expr in [e for e in known if not is_matrix_op(e)]:
        del known[expr]


@dataclass
class _Namer:
    """Namer of reductions and matrix ops. `known` in its methods maps them to their names."""

    used_names: set[str]
    declared: set[str]
    joined: set[Ref]  # names that both arms of a branch assign
    new_statements: list[Assign] = field(default_factory=list)  # before the present statement
    matrix_results: set[str] = field(default_factory=set)  # names

    def program(self, program: Program, known: dict[Expr, Ref]) -> Program:
        """Rewrite a block. Names that an arm gives to reductions are not known after the branch."""
        out: list[Stmt] = []
        for stmt in program:
            self.new_statements = []
            if isinstance(stmt, Assign):
                value = self._statement_value(stmt.value, known)
                # The target of a reduction or matrix op may have no other assignment.
                has_other_values = stmt.target in self.joined or stmt.target.name in self.declared
                if ends_phase(value) and has_other_values:
                    value = self._named(value, known)
                if is_matrix_op(value):
                    self.matrix_results.add(stmt.target.name)
                out += [replace(s, quote=stmt.quote, place=stmt.place) for s in self.new_statements]
                out.append(replace(stmt, value=value))
                if ends_phase(value):
                    known[value] = stmt.target
                continue
            condition = self._with_named_ops(stmt.condition, known)
            out += [replace(s, place=stmt.place) for s in self.new_statements]
            then, orelse = (self.program(arm, dict(known)) for arm in (stmt.then, stmt.orelse))
            out.append(replace(stmt, condition=condition, then=then, orelse=orelse))
        return tuple(out)

    def _statement_value(self, value: Expr, known: dict[Expr, Ref]) -> Expr:
        """Rewrite a statement's value.

        A reduction or matrix op stays the value unless its result already has a name.
        """
        if is_matrix_op(value):
            inner = self._with_local_operand(value, known)
        else:
            value = self._with_named_matrix_ops(value, known)
            inner = rebuild(value, lambda child: self._with_named_reductions(child, known))
        may_be_shared = ends_phase(inner) and not is_wide(inner)
        return known.get(inner, inner) if may_be_shared else inner

    def _with_named_ops(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        return self._with_named_reductions(self._with_named_matrix_ops(expr, known), known)

    def _with_named_matrix_ops(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        """Name the matrix ops of an expression, which are computed before its reductions."""
        if not is_matrix_op(expr):
            return rebuild(expr, lambda child: self._with_named_matrix_ops(child, known))
        return self._named(self._with_local_operand(expr, known), known)

    def _with_named_reductions(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        expr = rebuild(expr, lambda child: self._with_named_reductions(child, known))
        return self._named(expr, known) if ends_phase(expr) else expr

    def _with_local_operand(self, op: Expr, known: dict[Expr, Ref]) -> Expr:
        """Return a matrix op whose operand is a local; any other operand is assigned to one."""
        op = rebuild(op, lambda child: self._with_named_ops(child, known))
        assert isinstance(op, Call)
        first, *rest = op.args
        # Between two matrix ops lies a sweep, which stores the operand of the second op. So if this
        # operand is the result of another matrix op, it is assigned to a local, too.
        if not isinstance(first, Ref) or first.name in self.declared | self.matrix_results:
            local = Ref(self._free_name(_description(first) + "_matrix"))
            self.new_statements.append(Assign(local, first))
            op = replace(op, args=(local, *rest))
        if op not in known:
            _drop_reductions(known)
        return op

    def _named(self, expr: Expr, known: dict[Expr, Ref]) -> Ref:
        if expr not in known:
            known[expr] = Ref(self._name(expr))
            self.new_statements.append(Assign(known[expr], expr))
            if is_matrix_op(expr):
                self.matrix_results.add(known[expr].name)
        return known[expr]

    def _name(self, expr: Expr) -> str:
        assert isinstance(expr, Call)
        return self._free_name(f"{_description(expr.args[0])}_{expr.op}")

    def _free_name(self, wanted: str) -> str:
        name = free_name(wanted, self.used_names)
        self.used_names.add(name)
        return name


def _description(expr: Expr) -> str:
    """Return a part of a name that describes an expression: grad_sq, row_var, update."""
    match expr:
        case Ref(name):
            return name
        case Call("*", (a, b)) if a == b:
            return f"{_description(a)}_sq"
        case Call("**", (a, Const(2))):
            return f"{_description(a)}_sq"
        case Call(word, _) if word.isidentifier():
            return word
        case Call("/", (a, _)):
            return f"{_description(a)}_quotient"
    return next(_names(expr), "value")


def _names(expr: Expr) -> Iterator[str]:
    match expr:
        case Ref(name):
            yield name
        case Call(_, args):
            for arg in args:
                yield from _names(arg)
