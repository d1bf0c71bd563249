"""Select torch operations for a sweep, in place where that is correct.

Patterns of the linear form select the operation: `m = b * m + (1 - b) * g` is a lerp, `c * x * y`
is an addcmul, `c * x / y` is an addcdiv. Operations run in place on stored streams, and on locals
that the generated code allocated. The gradient and aliased tensors are never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.nodes import Assign, Call, Const, Expr, If, Linear, Program, Ref, Term, assigns, refs
from optgen.ir.ops import MAXIMA
from optgen.ir.plan import Plan, Sweep, is_reduction
from optgen.passes.build_torch_ops import ALWAYS_NEW, TorchOpBuilder
from optgen.passes.inline_scalars import definitions, expand_definitions
from optgen.passes.sums_to_one import sums_to_one
from optgen.passes.torch_ops import Alias, Branch, Instruction, Ops, Reduce


def select_torch_ops(plan: Plan, sweep: Sweep) -> tuple[Instruction, ...]:
    """Return the instructions of one sweep."""
    return tuple(_Selector(plan, sweep).program(sweep.body))


class _Selector(TorchOpBuilder):
    """Instruction selector of one sweep."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.definitions = definitions(self.plan)
        self.matrix_inputs = {call.args[0] for call in self.plan.matrix_calls}

    def program(self, body: Program) -> Iterator[Instruction]:
        for stmt in body:
            if isinstance(stmt, If):
                yield self._branch(stmt)
            else:
                self._begin_statement(stmt.value)
                self._assign(stmt)
                yield Ops(stmt.quote, tuple(self.operations))

    def _branch(self, stmt: If) -> Branch:
        """Select the instructions of a branch, and join the variables after its arms."""
        before = self.variables.copy()
        then = tuple(self.program(stmt.then))
        after_then, self.variables = self.variables, before
        orelse = tuple(self.program(stmt.orelse))
        self.variables.join(after_then)
        return Branch(stmt.condition, then, orelse)

    def _assign(self, stmt: Assign) -> None:
        """Append the operations of one statement, and record whether its target is an alias."""
        name = stmt.target.name
        aliased = frozenset[str]()
        match stmt.value:
            case Call("copy", (Ref(source),)):
                self._emit("clone", name, source)
            case Call(word, (reduced,)) if is_reduction(stmt.value):
                self._reduce(word, name, reduced)
            case Linear((Term(Const(1), (Ref(source),), ()),)) if (
                self._source_changes_before_last_use(stmt, source)
            ):
                self._emit("clone", name, source)
            case Linear((Term(Const(1), (Ref(source),), ()),)) if name not in self.variables.stored:
                self.operations.append(Alias(name, source))
                aliased = self.variables.names_sharing_tensor(source)
                self.variables.owned -= {name, *aliased}  # a change in place would change them all
            case Linear(terms) if name in self.variables.stored:
                self._update(name, terms)
            case Linear(terms):  # the variable's own term first, so that the others are added to it
                own_first = sorted(terms, key=lambda t: not _is_scaled_name(t, name))
                self._compute_local(name, Linear(tuple(own_first)))
            case value:
                self._compute_local(name, value)
        self.variables.aliases[name] = aliased
        if name not in self.variables.stored:
            if self.variables.may_have_another_dtype(stmt.value):
                self.variables.other_dtypes.add(name)
            else:
                self.variables.other_dtypes.discard(name)

    def _source_changes_before_last_use(self, stmt: Assign, source: str) -> bool:
        """Tell whether a copy's source is changed in place before the copy's last use."""
        if stmt.target.name in self.variables.stored:  # a stored stream has its own tensor
            return False
        statements = list(assigns(self.sweep.body))
        position = next(n for n, each in enumerate(statements) if each is stmt)
        later = statements[position + 1 :]
        sharing = self.variables.stored & self.variables.names_sharing_tensor(source)
        first_change = next(
            (n for n, each in enumerate(later) if each.target.name in sharing), None
        )
        if first_change is None:
            return False
        read = {ref.name for each in later[first_change + 1 :] for ref in refs(each.value)}
        return stmt.target in self.matrix_inputs or stmt.target.name in read

    def _reduce(self, word: str, name: str, reduced: Expr) -> None:
        match reduced:
            case Linear((Term(Const(1), (a, b), ()),)) if a == b and word not in MAXIMA:
                self.operations.append(Reduce(word, name, self._operand(a), squared=True))
            case _:
                self.operations.append(Reduce(word, name, self._operand(reduced), squared=False))

    def _compute_local(self, name: str, value: Expr) -> None:
        """Compute a local into a new tensor.

        If the computation still reads the local's old value, a temporary takes the new one.
        """
        firsts = value.terms[0].factors[:1] if isinstance(value, Linear) else ()
        starts_with_name = any(_is_name(first, name) for first in firsts)
        num_reads = self.variables.num_reads(value, name)
        if num_reads == 0 or (starts_with_name and num_reads == 1):
            self._materialize(value, name)
            return
        self.operations.append(
            Alias(name, self._materialize(value, self._temporary(f"{name}_new")))
        )
        self.variables.owned.add(name)

    def _update(self, name: str, terms: tuple[Term, ...]) -> None:
        """Store a sum in a stream: add to its old value in place if that is one of the terms."""
        own = next((t for t in terms if _is_scaled_name(t, name)), None)
        others = tuple(t for t in terms if t is not own)
        if own is None or self.variables.num_reads(Linear(others), name):
            self._overwrite(name, terms)
            return
        weight = self._lerp_weight(own, others)
        if weight is not None and not self.variables.may_have_another_dtype(Linear(terms)):
            self._emit("lerp", name, name, (self._operand(others[0].factors[0]), weight))
        else:
            operands = [self._operands(t) for t in others]
            self._scale(name, own.coefficient)
            for term, tensors in zip(others, operands, strict=True):
                self._accumulate(name, term, tensors)

    def _overwrite(self, name: str, terms: tuple[Term, ...]) -> None:
        """Store a value in a stream whose old value is not simply scaled and added to."""
        value = Linear(terms)
        num_reads = self.variables.num_reads(value, name)
        match terms:
            case (Term(Const(1), (Ref(source),), ()),):
                self._emit("copy", name, name, (source,), inplace=True)
            case (Term(Const(1), (Call("where", (mask, a, b)),), ()),) if self._is_fill(mask, a, b):
                self._overwrite_where(name, mask, a, b)
            case _ if num_reads == 1 and self._starts_with(name, value):
                self._materialize(value, name)
            case _:
                update = self._materialize(value, self._temporary("update"))
                self._emit("copy", name, name, (update,), inplace=True)

    def _overwrite_where(self, name: str, mask: Expr, a: Expr, b: Expr) -> None:
        """Store a `where` of a tensor and a number: copy the tensor, then fill in the number."""
        number, tensor = (b, a) if self._is_tensor(a) else (a, b)
        condition, value = self._operand(mask, "condition"), self._operand(tensor, "value")
        if value != name:
            self._emit("copy", name, name, (value,), inplace=True)
        self._fill(name, condition, number, where=number is a)

    def _starts_with(self, name: str, value: Expr) -> bool:
        """Tell whether a value can be computed in place in a variable, its first operand."""
        match value:
            case Ref():
                return value.name == name
            case Linear(terms):
                return any(self._starts_with(name, f) for f in terms[0].factors[:1])
            case Call(word, args) if word not in ALWAYS_NEW:
                return self._starts_with(name, args[0])
        return False

    def _lerp_weight(self, own: Term, others: tuple[Term, ...]) -> Expr | None:
        """Return the weight if the terms are (1 - weight) * own + weight * other, else None."""
        match others:
            case (Term(weight, (_,), ()),):
                a, b = (expand_definitions(c, self.definitions) for c in (own.coefficient, weight))
                return weight if sums_to_one(a, b) else None
        return None


def _is_scaled_name(term: Term, name: str) -> bool:
    """Tell whether a term is a number times the variable of this name."""
    return not term.divisors and len(term.factors) == 1 and _is_name(term.factors[0], name)


def _is_name(expr: Expr, name: str) -> bool:
    return isinstance(expr, Ref) and expr.name == name
