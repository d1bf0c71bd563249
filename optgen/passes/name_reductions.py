"""Every reduction and every matrix word becomes a statement of its own, with a name.

Both end a phase, so a plan cuts the rule at these statements. The same reduction of the same values
is made once, but anew after a matrix word, which nothing small outlasts. What a matrix word takes
has a name of its own too: the trip before stores it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import is_free
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, Stmt, assigns, rebuild
from optgen.ir.ops import OPS
from optgen.ir.value_kinds import declared_kinds


def name_reductions(algorithm: Algorithm) -> Algorithm:
    """The same rule, with versions, in which these words stand alone behind the arrow."""
    declared = set(declared_kinds(algorithm))
    taken = {a.target.name for a in assigns(algorithm.rule)} | declared
    times = Counter(a.target for a in assigns(algorithm.rule))
    namer = _Namer(taken, declared, {ref for ref, count in times.items() if count > 1})
    return replace(algorithm, rule=namer.program(algorithm.rule, {}))


def ends_phase(expr: Expr) -> bool:
    """Whether a value is known only when a trip through memory has ended."""
    return isinstance(expr, Call) and OPS[expr.op].category in ("reduction", "matrix")


def is_matrix_word(expr: Expr) -> bool:
    """Whether a value is what a matrix word makes."""
    return isinstance(expr, Call) and OPS[expr.op].category == "matrix"


def _forget(known: dict[Expr, Ref]) -> None:
    """What was reduced before a matrix word is reduced again after it."""
    for expr in [e for e in known if not is_matrix_word(e)]:
        del known[expr]


@dataclass
class _Namer:
    taken: set[str]
    declared: set[str]
    joined: set[Ref]  # what either arm of a branch gives a value
    made: list[Assign] = field(default_factory=list)
    results: set[str] = field(default_factory=set)  # names that matrix words give a value

    def program(self, program: Program, known: dict[Expr, Ref]) -> Program:
        """A block; what an arm names is not known after it."""
        out: list[Stmt] = []
        for stmt in program:
            self.made = []
            if isinstance(stmt, Assign):
                value = self._outer(stmt.value, known)
                # A trip or a word is the only maker of its result: nobody else holds the tensor.
                shared = stmt.target in self.joined or stmt.target.name in self.declared
                if ends_phase(value) and shared:
                    value = self._named(value, known)
                if is_matrix_word(value):
                    self.results.add(stmt.target.name)
                out += [replace(made, quote=stmt.quote, place=stmt.place) for made in self.made]
                out.append(replace(stmt, value=value))
                if ends_phase(value):
                    known[value] = stmt.target
                continue
            condition = self._inner(stmt.condition, known)
            out += [replace(made, place=stmt.place) for made in self.made]
            then, orelse = (self.program(a, dict(known)) for a in (stmt.then, stmt.orelse))
            out.append(replace(stmt, condition=condition, then=then, orelse=orelse))
        return tuple(out)

    def _outer(self, value: Expr, known: dict[Expr, Ref]) -> Expr:
        """The value of a statement: a reduction may stay where it is, unless it was made before."""
        if is_matrix_word(value):
            inner = self._word(value, known)
        else:
            inner = rebuild(self._called(value, known), lambda child: self._reduced(child, known))
        return known.get(inner, inner) if ends_phase(inner) else inner

    def _inner(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        return self._reduced(self._called(expr, known), known)

    def _called(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        """An expression whose matrix words have names: they come first, whatever it reduces."""
        if not is_matrix_word(expr):
            return rebuild(expr, lambda child: self._called(child, known))
        return self._named(self._word(expr, known), known)

    def _reduced(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        expr = rebuild(expr, lambda child: self._reduced(child, known))
        return self._named(expr, known) if ends_phase(expr) else expr

    def _word(self, word: Expr, known: dict[Expr, Ref]) -> Expr:
        """A matrix word of a local: what else it takes becomes one."""
        word = rebuild(word, lambda child: self._inner(child, known))
        assert isinstance(word, Call)
        first, *rest = word.args
        # Between two words a trip stands: what one has made, it stores for the next.
        if not isinstance(first, Ref) or first.name in self.declared | self.results:
            local = Ref(self._free(_spoken(first) + "_matrix"))
            self.made.append(Assign(local, first))
            word = replace(word, args=(local, *rest))
        if word not in known:
            _forget(known)
        return word

    def _named(self, expr: Expr, known: dict[Expr, Ref]) -> Ref:
        if expr not in known:
            known[expr] = Ref(self._name(expr))
            self.made.append(Assign(known[expr], expr))
            if is_matrix_word(expr):
                self.results.add(known[expr].name)
        return known[expr]

    def _name(self, expr: Expr) -> str:
        assert isinstance(expr, Call)
        return self._free(f"{_spoken(expr.args[0])}_{expr.op}")

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
