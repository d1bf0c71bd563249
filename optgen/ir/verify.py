"""Whether an algorithm or a plan keeps the rules that the next pass relies on.

Tests ask after every pass. A name is one mutable variable to a printer, whatever its versions, so a
read is right only where the version read is the last one written on the path that leads there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import STATIC, Kind, declared_kinds, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Linear,
    Program,
    Ref,
    Term,
    assigns,
    children,
    expressions,
    walk,
)
from optgen.ir.plan import Plan, Sweep
from optgen.ir.text import expr_text
from optgen.ir.words import WORDS

Versions = dict[str, int]
Assumed = Mapping[Expr, bool]


class VerifyError(Exception):
    """A pass broke a rule of the level it produces."""


def verify_algorithm(algorithm: Algorithm) -> None:
    """Check a rule with versions: what `to_ssa` promises.

    Raises:
        VerifyError: with the statement that breaks a rule.
    """
    kinds = {Ref(name): kind for name, kind in declared_kinds(algorithm).items()}
    _learn_kinds(algorithm.rule, kinds)
    for expr in expressions(algorithm.rule):
        _check_words(expr)
        if any(isinstance(e, Linear) for e in walk(expr)):
            _fail("a linear form belongs to a plan", expr)
    declared = dict.fromkeys(declared_kinds(algorithm), 0)
    _Paths(kinds, _written(algorithm.rule), copies=True).run(algorithm.rule, declared)


def verify_plan(plan: Plan, *, hoisted: bool = True) -> None:
    """Check a plan; `hoisted`: every coefficient is a number, a named scalar or its negation.

    Raises:
        VerifyError: with the statement that breaks a rule.
    """
    algorithm = plan.algorithm
    kinds = dict(plan.kinds)
    for program in (plan.scalars, *(s.body for s in plan.sweeps)):
        for expr in expressions(program):
            _check_words(expr)
    for stmt in assigns(plan.scalars):
        if kind_of(stmt.value, kinds.__getitem__).is_tensor:
            _fail("a tensor in the scalar program", stmt.value)
    scalars = {n: 0 for n, kind in declared_kinds(algorithm).items() if not kind.is_tensor}
    paths = _Paths(kinds, _written(plan.scalars))
    paths.run(plan.scalars, scalars)
    tensors = {n: 0 for n, kind in declared_kinds(algorithm).items() if kind.is_tensor}
    for sweep in plan.sweeps:
        written = _written(sweep.body)
        _Sweep(kinds, written, False, paths, plan.scalars, scalars).run(sweep.body, tensors)
        _Forms(kinds, hoisted).check(sweep.body)
        _check_streams(algorithm, sweep)
    _check_stores(plan)


@dataclass
class _Paths:
    """Follows every path of a program.

    `copies`: both arms end in the same version of a name. Without them (a plan leaves out what
    copies a name to itself) a version that is not in `written` is the one before.
    """

    kinds: Mapping[Ref, Kind]
    written: set[Ref]
    copies: bool = False

    def run(
        self,
        program: Program,
        before: Versions,
        assumed: Assumed | None = None,
        done: list[tuple[Assign, Assumed]] | None = None,
    ) -> Versions:
        """The versions after a program, from those before it; `done` are assignments so far."""
        now, path, done = dict(before), dict(assumed or {}), [] if done is None else done
        for stmt in program:
            if isinstance(stmt, Assign):
                self.read(stmt.value, now, path)
                for other, there in done:
                    again = other.target == stmt.target and other.value != stmt.value
                    if again and not _exclude(path, there):
                        _fail("assigned two values on one path", stmt.target)
                now[stmt.target.name] = stmt.target.version
                done.append((stmt, path))
            else:
                now = self._branch(stmt, now, path, done)
        return now

    def _branch(
        self, stmt: If, before: Versions, path: Assumed, done: list[tuple[Assign, Assumed]]
    ) -> Versions:
        self.read(stmt.condition, before, path)
        if kind_of(stmt.condition, self.kinds.__getitem__).is_tensor:
            _fail("an if on a tensor", stmt.condition)
        taken = path.get(stmt.condition)
        if taken is not None:  # an outer branch on the same condition: the other arm is dead
            live, dead = (stmt.then, stmt.orelse) if taken else (stmt.orelse, stmt.then)
            return _on_taken(before, self.run(live, before, path, done), dead)
        then = self.run(stmt.then, before, {**path, stmt.condition: True}, done)
        orelse = self.run(stmt.orelse, before, {**path, stmt.condition: False}, done)
        return self._joined(before, then, orelse)

    def _joined(self, before: Versions, then: Versions, orelse: Versions) -> Versions:
        """The versions after both arms; an arm without an assignment keeps the old value.

        Where the arms differ, no version has a value: reading one is an error.
        """
        after: Versions = {}
        for name in then.keys() & orelse.keys():
            a, b, old = then[name], orelse[name], before.get(name)
            if a == b or (old in (a, b) and not self.copies):
                after[name] = b if a == old else a
        return after

    def read(self, expr: Expr, now: Versions, path: Assumed) -> None:
        """Check that every name an expression reads has that version here; `fresh` reads none."""
        match expr:
            case Ref():
                self.read_ref(expr, now, path)
            case Call("fresh", _):
                return
            case _:
                for child in children(expr):
                    self.read(child, now, path)

    def read_ref(self, ref: Ref, now: Versions, path: Assumed) -> None:
        """Check one name."""
        if ref not in self.kinds:
            _fail("a name without a kind", ref)
        if ref.name not in now:
            _fail("undefined on this path", ref)
        left_out = not self.copies and ref.version > 0 and ref not in self.written
        if now[ref.name] != ref.version and not left_out:
            _fail(f"read after version {now[ref.name]} was written", ref)


@dataclass
class _Sweep(_Paths):
    """Paths of a sweep; the scalar program ran to its end, under the same conditions, before."""

    before: _Paths = field(default_factory=lambda: _Paths({}, set()))
    scalars: Program = ()
    given: Versions = field(default_factory=dict)

    def read_ref(self, ref: Ref, now: Versions, path: Assumed) -> None:
        """Check one name; a scalar by what the scalar program leaves on this path."""
        if ref in self.kinds and not self.kinds[ref].is_tensor:
            now = self.before.run(self.scalars, self.given, path)
            self.before.read_ref(ref, now, path)
        else:
            super().read_ref(ref, now, path)


@dataclass
class _Forms:
    """Checks that tensor values have linear form, all the way down."""

    kinds: Mapping[Ref, Kind]
    hoisted: bool

    def check(self, body: Program) -> None:
        """Check every value a sweep assigns."""
        for stmt in assigns(body):
            match stmt.value:
                case Linear():
                    self._linear(stmt.value)
                case Call("copy", (Ref() as source,)) if self._is_tensor(source):
                    pass
                case _:
                    _fail("a tensor value that is no linear form", stmt.value)

    def _is_tensor(self, expr: Expr) -> bool:
        return kind_of(expr, self.kinds.__getitem__).is_tensor

    def _linear(self, form: Linear) -> None:
        if not form.terms:
            _fail("a sum of nothing", form)
        alike = Counter((t.factors, t.divisors) for t in form.terms)
        if max(alike.values()) > 1:
            _fail("like terms that were not added up", form)
        for term in form.terms:
            self._term(term)

    def _term(self, term: Term) -> None:
        self._scalar(term.coefficient)
        for part in (*term.factors, *term.divisors):
            if not self._is_tensor(part):
                _fail("a scalar among the factors", part)
            self._operand(part)

    def _operand(self, expr: Expr) -> None:
        match expr:
            case Linear():
                self._linear(expr)
            case Call(_, args):
                for arg in args:
                    if self._is_tensor(arg):
                        self._operand(arg)
                    else:
                        self._scalar(arg)

    def _scalar(self, expr: Expr) -> None:
        if self._is_tensor(expr):
            _fail("a tensor for a coefficient", expr)
        match expr:
            case Const() | Ref() | Call("neg", (Ref(),)) | Call("truth" | "is_none" | "fresh", _):
                return
            case Call(word, args) if WORDS[word].sort in ("comparison", "logic"):
                for arg in args:
                    self._scalar(arg)
            case _ if self.hoisted:
                _fail("a scalar without a name", expr)


def _on_taken(before: Versions, taken: Versions, dead: Program) -> Versions:
    """After the arm that is taken; what only the other arm assigns has their join's version."""
    joined = {a.target.name: a.target.version for a in assigns(dead)}
    return {
        name: joined.get(name, version) if version == before.get(name) else version
        for name, version in taken.items()
    }


def _exclude(path: Assumed, other: Assumed) -> bool:
    """Whether no run goes both ways."""
    return any(other.get(condition) is (not holds) for condition, holds in path.items())


def _written(program: Program) -> set[Ref]:
    return {a.target for a in assigns(program)}


def _learn_kinds(program: Program, kinds: dict[Ref, Kind]) -> None:
    """The kinds of what a program assigns, where every name it reads is known."""
    for stmt in program:
        if isinstance(stmt, Assign):
            kind = kind_of(stmt.value, lambda ref: kinds.get(ref, STATIC))
            known = kinds.get(stmt.target)
            kinds[stmt.target] = kind.join(known) if known else kind
        else:
            _learn_kinds(stmt.then, kinds)
            _learn_kinds(stmt.orelse, kinds)


def _check_words(expr: Expr) -> None:
    for node in walk(expr):
        if isinstance(node, Call):
            word = WORDS.get(node.word)
            if word is None:
                _fail("an unknown word", node)
            if len(node.args) != word.arity:
                _fail(f"`{node.word}` takes {word.arity}", node)


def _check_streams(algorithm: Algorithm, sweep: Sweep) -> None:
    """A sweep touches parameter, gradient and tensor states, and stores what it assigns."""
    names = [s.name for s in sweep.streams]
    expected = [algorithm.param, algorithm.grad, *(s.symbol for s in algorithm.tensor_states())]
    if names != expected:
        raise VerifyError(f"the streams are {names}, not {expected}")
    written = {a.target.name for a in assigns(sweep.body)} - {algorithm.grad}
    stored = {s.name for s in sweep.streams if s.stored}
    if stored != written & set(names):
        raise VerifyError(f"stored are {sorted(stored)}, assigned {sorted(written)}")


def _check_stores(plan: Plan) -> None:
    """The parameter and every state is stored in exactly one phase."""
    stores = Counter(s.name for sweep in plan.sweeps for s in sweep.streams if s.stored)
    stores.update({a.target.name for a in assigns(plan.scalars)})
    for name in (plan.algorithm.param, *(s.symbol for s in plan.algorithm.states)):
        if stores[name] != 1:
            raise VerifyError(f"`{name}` is stored in {stores[name]} phases")


def _fail(message: str, expr: Expr) -> NoReturn:
    raise VerifyError(f"{message}: {expr_text(expr)}")
