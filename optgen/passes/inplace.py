"""A sweep as torch operations, one trip through memory each, in place wherever that is right.

The linear form decides: `m = b * m + (1 - b) * g` is a lerp, `c * x * y` an addcmul, `c * x / y` an
addcdiv. A stored stream is changed in place; a local may be, once nobody needs its old value; a
gradient and another name's storage never are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from optgen.ir.nodes import Assign, Call, Const, Expr, If, Linear, Program, Ref, Term, refs
from optgen.ir.plan import Plan, Sweep
from optgen.passes.algebra import sums_to_one
from optgen.passes.definitions import definitions, written_out
from optgen.passes.instructions import Alias, Branch, Instruction, Op, Operand, Ops
from optgen.passes.liveness import live_after
from optgen.passes.scalars import ONE, is_number, negate

_ALWAYS_NEW = ("<", "<=", ">", ">=", "==", "!=", "where", "clone", "full_like")
"""Words whose result is of another type than what they read, or a tensor of its own by purpose."""

_MIRRORED = dict(zip(("<", "<=", ">", ">="), (">", ">=", "<", "<="), strict=True)) | {
    word: word for word in ("==", "!=", "and", "or")
}
"""Words whose operands may change sides; torch has them with the number on the right only."""


def to_inplace(plan: Plan, sweep: Sweep) -> tuple[Instruction, ...]:
    """The instructions of one sweep."""
    return tuple(_InPlace(plan, sweep).program(sweep.body))


@dataclass
class _InPlace:
    plan: Plan
    sweep: Sweep
    owned: set[str] = field(default_factory=set)
    steps: list[Op | Alias] = field(default_factory=list)
    made: dict[Expr, str] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)
    aliases: dict[str, frozenset[str]] = field(default_factory=dict)  # whose tensors a name may be

    def __post_init__(self) -> None:
        self.stored = {s.name for s in self.sweep.streams if s.stored}
        self.live = live_after(self.sweep.body)
        self.known = definitions(self.plan)
        self.names = {r.name for r in self.plan.kinds}

    def program(self, body: Program) -> Iterator[Instruction]:
        for stmt in body:
            if isinstance(stmt, If):
                yield self._branch(stmt)
            else:
                self.steps = []
                self._assign(stmt)
                yield Ops(stmt.quote, tuple(self.steps))

    def _branch(self, stmt: If) -> Branch:
        """After a branch, owned is what both ways own, and an alias what either way made one."""
        owned, aliases = set(self.owned), dict(self.aliases)
        then = tuple(self.program(stmt.then))
        (owned, self.owned), (aliases, self.aliases) = (self.owned, owned), (self.aliases, aliases)
        orelse = tuple(self.program(stmt.orelse))
        self.owned &= owned
        for name, sources in aliases.items():
            self.aliases[name] = sources | self.aliases.get(name, frozenset())
        return Branch(stmt.condition, then, orelse)

    def _assign(self, stmt: Assign) -> None:
        name = stmt.target.name
        self.spent = self._spent_locals(stmt)
        self.made = {}
        aliased = frozenset[str]()
        match stmt.value:
            case Call("copy", (Ref(source),)):
                self._emit("clone", name, source)
            case Linear((Term(Const(1), (Ref(source),), ()),)) if name not in self.stored:
                self.steps.append(Alias(name, source))
                self.owned.discard(name)
                aliased = self._storage(source)
            case Linear(terms) if name in self.stored:
                self._update(name, terms)
            case Linear(terms):
                self._local(name, Linear(_led_by(name, terms)))
            case value:
                self._local(name, value)
        self.aliases[name] = aliased

    def _storage(self, name: str) -> frozenset[str]:
        """Every name whose tensors this one may stand for, its own among them."""
        return self.aliases.get(name, frozenset()) | {name}

    def _local(self, name: str, value: Expr) -> None:
        """A local gets a new tensor, built under its own name unless its old value is read late."""
        leads = isinstance(value, Linear) and value.terms[0].factors[:1] == (
            self._ref(name, value),
        )
        reads = sum(name in self._storage(r.name) for r in refs(value))
        if reads == 0 or (leads and reads == 1):
            self._materialise(value, name)
            return
        self.steps.append(Alias(name, self._materialise(value, self._temporary(f"{name}_new"))))
        self.owned.add(name)

    def _ref(self, name: str, value: Expr) -> Expr | None:
        return next((r for r in refs(value) if r.name == name), None)

    def _spent_locals(self, stmt: Assign) -> set[str]:
        """Private tensors this statement is the last to read, and reads once."""
        after = {name for r in self.live[id(stmt)] for name in self._storage(r.name)}
        reads = Counter(name for r in refs(stmt.value) for name in self._storage(r.name))
        return {n for n, times in reads.items() if n in self.owned - after and times == 1}

    def _update(self, name: str, terms: tuple[Term, ...]) -> None:
        own = next((t for t in terms if _is_plain(t, name)), None)
        others = tuple(t for t in terms if t is not own)
        if own is None or any(name in self._storage(r.name) for r in refs(Linear(others))):
            self._overwrite(name, terms)
        elif (weight := self._lerp_weight(own, others)) is not None:
            self._emit("lerp", name, name, (self._operand(others[0].factors[0]), weight))
        else:
            operands = [self._operands(t) for t in others]
            self._scale(name, own.coefficient)
            for term, parts in zip(others, operands, strict=True):
                self._accumulate(name, term, parts)

    def _overwrite(self, name: str, terms: tuple[Term, ...]) -> None:
        """A new value that is no change of the old one: an operation on it, or a copy."""
        match terms:
            case (
                Term(Const(1), (Call("maximum" | "minimum" as word, (Ref(first), second)),), ()),
            ) if first == name:
                self._extreme(word, name, name, second)
            case (Term(Const(1), (Ref(source),), ()),):
                self._emit("copy", name, name, (source,), inplace=True)
            case _:
                value = self._materialise(Linear(terms), self._temporary("update"))
                self._emit("copy", name, name, (value,), inplace=True)

    def _lerp_weight(self, own: Term, others: tuple[Term, ...]) -> Expr | None:
        """The weight, if this is (1 - weight) * own + weight * other."""
        match others:
            case (Term(weight, (_,), ()),):
                a, b = (written_out(c, self.known) for c in (own.coefficient, weight))
                return weight if sums_to_one(a, b) else None
        return None

    def _materialise(self, expr: Expr, name: str) -> str:
        """A variable that holds the expression's value, called `name` if it has to be made."""
        if isinstance(expr, Ref):
            return expr.name
        if expr in self.made:
            return self.made[expr]
        if isinstance(expr, Linear):
            self._sum(expr.terms, name)
        else:
            assert isinstance(expr, Call)
            self._word(expr, name)
        self.made[expr] = name
        return name

    def _sum(self, terms: tuple[Term, ...], name: str) -> None:
        """A sum begins with a tensor; numbers are added to it, or fill one if there is no other."""
        first, *others = sorted(terms, key=_is_a_number)
        source = name if _is_a_number(first) else self._leading(first, name)
        if _is_a_number(first):
            self._emit("full_like", name, self.sweep.streams[0].name, (first.coefficient,))
        for term in others:
            self._accumulate(name, term, self._operands(term), source)
            source = name

    def _leading(self, term: Term, name: str) -> str:
        """The variable that holds the first term: the tensor itself where that is all it is."""
        source = self._unscaled(term, name)
        if is_number(term.coefficient, 1):
            return source
        if is_number(term.coefficient, -1):
            self._emit("neg", name, source)
        else:
            self._scale(name, term.coefficient, source)
        return name

    def _unscaled(self, term: Term, name: str) -> str:
        """A term without its coefficient."""
        if not term.factors:
            self._emit("reciprocal", name, self._materialise_divisors(term))
            return name
        source = self._materialise(term.factors[0], name)
        for factor in term.factors[1:]:
            self._emit("mul", name, source, (self._operand(factor),))
            source = name
        if term.divisors:
            self._emit("div", name, source, (self._materialise_divisors(term),))
            source = name
        return source

    def _scale(self, name: str, coefficient: Expr, source: str | None = None) -> None:
        match coefficient:
            case Const(1):
                return
            case Call("/", (Const(1), below)):
                self._emit("div", name, source or name, (below,))
            case Call("neg", (Call("/", (Const(1), below)),)):
                self._emit("div", name, source or name, (negate(below),))
            case _:
                self._emit("mul", name, source or name, (coefficient,))

    def _accumulate(
        self, name: str, term: Term, parts: tuple[str, ...], source: str | None = None
    ) -> None:
        """Add one term to what is there, in a single operation."""
        start = source or name
        if not parts:
            self._emit("add", name, start, (term.coefficient,))
        elif len(parts) == 1:
            self._emit("add", name, start, parts, term.coefficient)
        else:
            word = "addcdiv" if term.divisors else "addcmul"
            self._emit(word, name, start, parts, term.coefficient)

    def _operands(self, term: Term) -> tuple[str, ...]:
        """The one or two tensors of a term that an accumulating operation takes."""
        if term.divisors:
            below = self._materialise_divisors(term)
            if not term.factors:
                inverse = self._temporary("inverse")
                self._emit("reciprocal", inverse, below)
                return (inverse,)
            return self._product(term.factors, "update"), below
        if len(term.factors) <= 2:
            return tuple(self._operand(f) for f in term.factors)
        return self._product(term.factors[:-1], "update"), self._operand(term.factors[-1])

    def _materialise_divisors(self, term: Term) -> str:
        return self._product(term.divisors, "denom")

    def _product(self, factors: tuple[Expr, ...], name: str) -> str:
        if len(factors) == 1:
            return self._operand(factors[0], name)
        form = Linear((Term(ONE, factors),))
        return self.made.get(form) or self._materialise(form, self._temporary(name))

    def _operand(self, factor: Expr, name: str = "operand") -> str:
        if isinstance(factor, Ref):
            return factor.name
        return self.made.get(factor) or self._materialise(factor, self._temporary(name))

    def _word(self, call: Call, name: str) -> None:
        """An opaque word; its first operand is built under the result's own name."""
        first, *others = call.args
        match call.word:
            case "maximum" | "minimum":
                tensor, other = (first, others[0]) if self._is_tensor(first) else (others[0], first)
                self._extreme(call.word, name, self._materialise(tensor, name), other)
            case "clamp":
                tensor = first if self._is_tensor(first) else _filled(first)
                self._extreme("maximum", name, self._materialise(tensor, name), others[0])
                self._extreme("minimum", name, name, others[1])
            case "where":
                condition = self._either(first, "condition")
                if not any(map(self._is_tensor, others)):
                    others[0] = _filled(others[0])
                self._emit("where", name, condition, self._eithers(others, "value"))
            case word if word in _MIRRORED and not self._is_tensor(first):
                self._word(Call(_MIRRORED[word], (*others, first)), name)
            case "lerp" if not all(map(self._is_tensor, call.args[:2])):
                start, end = (e if self._is_tensor(e) else _filled(e) for e in call.args[:2])
                self._word(Call("lerp", (start, end, call.args[2])), name)
            case _:
                made = self._is_tensor(first)
                source: Operand = self._materialise(first, name) if made else first
                self._emit(call.word, name, source, self._eithers(others, "operand"))

    def _extreme(self, word: str, name: str, source: str, bound: Expr) -> None:
        """The larger or smaller of a tensor and another, or of a tensor and a number."""
        if self._is_tensor(bound):
            self._emit(word, name, source, (self._operand(bound),))
        else:
            self._emit("clamp_min" if word == "maximum" else "clamp_max", name, source, (bound,))

    def _eithers(self, exprs: Iterable[Expr], name: str) -> tuple[Operand, ...]:
        return tuple(self._either(expr, name) for expr in exprs)

    def _either(self, expr: Expr, name: str) -> Operand:
        return self._operand(expr, name) if self._is_tensor(expr) else expr

    def _is_tensor(self, expr: Expr) -> bool:
        return isinstance(expr, Linear) or self.plan.kind(expr).is_tensor

    def _temporary(self, name: str) -> str:
        """A name nothing in the rule has, nor another temporary of this statement."""
        taken = self.names | {step.target for step in self.steps} | set(self.made.values())
        numbered = (name if n == 1 else f"{name}{n}" for n in range(1, len(taken) + 2))
        return next(n for n in numbered if n not in taken)

    def _emit(
        self,
        word: str,
        target: str,
        source: Operand,
        args: tuple[Operand, ...] = (),
        scalar: Expr = ONE,
        inplace: bool = False,
    ) -> None:
        changes = word not in _ALWAYS_NEW
        if source == target and (target in self.stored or target in self.owned):
            inplace = changes
        spent = isinstance(source, str) and source in self.spent and source != target
        changed = str(source) if spent and changes else target
        self.made = {e: name for e, name in self.made.items() if name != changed}
        if changed != target:
            self.steps += [Op(word, changed, changed, args, scalar, True), Alias(target, changed)]
        else:
            self.steps.append(Op(word, target, source, args, scalar, inplace))
        if target not in self.stored:
            self.owned.add(target)


def _is_plain(term: Term, name: str) -> bool:
    """Whether a term is that variable, scaled."""
    return not term.divisors and len(term.factors) == 1 and _names(term.factors[0], name)


def _is_a_number(term: Term) -> bool:
    return not term.factors and not term.divisors


def _filled(number: Expr) -> Expr:
    """A number as a tensor, where an operation takes nothing else."""
    return Linear((Term(number),))


def _names(expr: Expr, name: str) -> bool:
    return isinstance(expr, Ref) and expr.name == name


def _led_by(name: str, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """The sum with the variable's own term in front, so that the rest can be added to it."""
    return tuple(sorted(terms, key=lambda t: not _is_plain(t, name)))
