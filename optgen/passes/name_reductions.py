"""Every reduction and every matrix word becomes a statement of its own, with a name.

Both end a phase, so a plan cuts the rule at these statements. The same reduction of the same values
is made once. What a matrix word takes has a name of its own too: the trip before stores it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import declared_kinds
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, Stmt, assigns, rebuild
from optgen.ir.variables import is_free
from optgen.ir.words import WORDS


def name_reductions(algorithm: Algorithm) -> Algorithm:
    """The same rule, with versions, in which these words stand alone behind the arrow."""
    declared = set(declared_kinds(algorithm))
    taken = {a.target.name for a in assigns(algorithm.rule)} | declared
    namer = _Namer(taken, declared)
    return replace(algorithm, rule=namer.program(algorithm.rule, {}))


def ends_phase(expr: Expr) -> bool:
    """Whether a value is known only when a trip through memory has ended."""
    return isinstance(expr, Call) and WORDS[expr.word].sort in ("reduction", "matrix")


@dataclass
class _Namer:
    taken: set[str]
    declared: set[str]
    made: list[Assign] = field(default_factory=list)

    def program(self, program: Program, known: dict[Expr, Ref]) -> Program:
        """A block; what an arm names is not known after it."""
        out: list[Stmt] = []
        for stmt in program:
            self.made = []
            if isinstance(stmt, Assign):
                value = self._outer(stmt.value, known)
                out += [replace(made, quote=stmt.quote) for made in self.made]
                out.append(replace(stmt, value=value))
                if ends_phase(value):
                    known[value] = stmt.target
                continue
            condition = self._inner(stmt.condition, known)
            out += self.made
            then, orelse = (self.program(a, dict(known)) for a in (stmt.then, stmt.orelse))
            out.append(replace(stmt, condition=condition, then=then, orelse=orelse))
        return tuple(out)

    def _outer(self, value: Expr, known: dict[Expr, Ref]) -> Expr:
        """The value of a statement: a reduction may stay where it is, unless it was made before."""
        inner = self._stored(rebuild(value, lambda child: self._inner(child, known)))
        return known.get(inner, inner) if ends_phase(inner) else inner

    def _stored(self, expr: Expr) -> Expr:
        """A matrix word of a local: what else it takes becomes one."""
        if not isinstance(expr, Call) or WORDS[expr.word].sort != "matrix":
            return expr
        first, *rest = expr.args
        if isinstance(first, Ref) and first.name not in self.declared:
            return expr
        local = Ref(self._free(_spoken(first) + "_matrix"))
        self.made.append(Assign(local, first, place=expr.place))
        return replace(expr, args=(local, *rest))

    def _inner(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        expr = self._stored(rebuild(expr, lambda child: self._inner(child, known)))
        if not ends_phase(expr):
            return expr
        if expr not in known:
            known[expr] = Ref(self._name(expr))
            self.made.append(Assign(known[expr], expr, place=expr.place))
        return known[expr]

    def _name(self, expr: Expr) -> str:
        assert isinstance(expr, Call)
        return self._free(f"{_spoken(expr.args[0])}_{expr.word}")

    def _free(self, wanted: str) -> str:
        numbered = (f"{wanted}{n if n > 1 else ''}" for n in count(1))
        name = next(n for n in numbered if is_free(n, self.taken))
        self.taken.add(name)
        return name


def _spoken(expr: Expr) -> str:
    """What is reduced, as a part of a name: grad_sq, row_var, update."""
    match expr:
        case Ref(name):
            return name
        case Call("*", (a, b)) if a == b:
            return f"{_spoken(a)}_sq"
        case Call("**", (a, Const(2))):
            return f"{_spoken(a)}_sq"
        case Call(word, _) if word.isidentifier():
            return word
    return next(_names(expr), "value")


def _names(expr: Expr) -> Iterator[str]:
    match expr:
        case Ref(name):
            yield name
        case Call(_, args):
            for arg in args:
                yield from _names(arg)
