"""Split a rule into its scalar program and its tensor statements in linear form.

A tensor local that only scales another tensor is inlined where it is used, and so is a single term
that is used once. Every other local keeps its statement, so nothing is computed twice.

Sums of values that derive from a rounding are computed in the order of the spec. After
`new = rounded(p + y)`, `c = y - (new - p)` is what the rounding has lost. The difference of the
nearly equal numbers `new` and `p` is exact. But `y - new` would be rounded, so `c` must not become
`y - new + p`. Algebra therefore leaves such sums alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Kind, declared_kinds, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Linear,
    Program,
    Ref,
    Stmt,
    Term,
    assigns,
    children,
    expressions,
    filter_assigns,
    is_self_copy,
    rebuild,
    refs,
)
from optgen.ir.ops import STORAGE_OPS
from optgen.passes.cut_phases import CutRule
from optgen.passes.extract_subexpressions import ends_phase, shared_decompositions
from optgen.passes.linear_forms import ONE, Linearizer, Terms, is_number
from optgen.passes.ranges import Range, declared_ranges, range_of


def split_scalars(cut: CutRule) -> CutRule:
    """Return the rule with its scalar program, and tensor statements of sweeps in linear form."""
    algorithm, kinds, rounded = cut.algorithm, dict(cut.kinds), rounded_refs(cut.algorithm.rule)
    if cut.is_whole:
        held = shared_decompositions(algorithm.rule)
        splitter = Splitter(algorithm, kinds, held=held, rounded=rounded)
        scalars, body = splitter.split(algorithm.rule)
        return replace(cut, scalars=scalars, sweeps=(body,), kinds=kinds)
    numbers = filter_assigns(algorithm.rule, lambda a: kinds[a.target].is_scalar)
    splitter = Splitter(replace(algorithm, rule=numbers), kinds)
    scalars, _ = splitter.split(numbers)
    sweeps: list[Program] = []
    ops = (a.value for call in cut.calls for a in assigns(call))
    held = frozenset(ref for op in ops for ref in refs(op))  # not inlined: matrix ops take names
    for sweep in cut.sweeps:
        sweep_rule = replace(algorithm, rule=sweep)
        sweep_splitter = Splitter(
            sweep_rule, kinds, dict(splitter.ranges), held=held, rounded=rounded
        )
        sweeps.append(sweep_splitter.split(sweep)[1])
        if cut.stores_early:
            held |= {a.target for a in assigns(sweeps[-1])}
    return replace(cut, scalars=scalars, sweeps=tuple(sweeps), kinds=kinds)


@dataclass
class Splitter:
    """Splitter that walks a program once, tracking kinds, ranges and inlined definitions.

    * `expansions`: for each inlined tensor its terms, and the spec's lines that they come from.
    * `scaled_names`: maps the name of a value without its scale to the name of the scaled value.
    * `held`: tensors that later phases read. They keep their statements.
    * `rounded`: values that derive from a rounding to the parameter's dtype.
    * `copied_from`: for each plain copy of a tensor, the names that it was copied from.
    """

    algorithm: Algorithm
    kinds: dict[Ref, Kind] = field(default_factory=dict)
    ranges: dict[Ref, Range] = field(default_factory=dict)
    expansions: dict[Ref, tuple[Terms, tuple[str, ...]]] = field(default_factory=dict)
    scaled_names: dict[str, str] = field(default_factory=dict)
    held: frozenset[Ref] = frozenset()
    rounded: frozenset[Ref] = frozenset()
    copied_from: dict[Ref, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds |= {Ref(n): kind for n, kind in declared_kinds(self.algorithm).items()}
        self.ranges |= declared_ranges(self.algorithm)
        self.use_counts = Counter(r for e in expressions(self.algorithm.rule) for r in _uses(e))
        self.events = list(_events(self.algorithm.rule))
        self.stored = self.algorithm.stored

    def is_tensor(self, expr: Expr) -> bool:
        return kind_of(expr, self.kinds.__getitem__).is_tensor

    def split(self, program: Program) -> tuple[Program, Program]:
        """Return the scalar statements and the tensor statements of a program, each in order."""
        scalars: list[Stmt] = []
        tensors: list[Stmt] = []
        for stmt in program:
            if isinstance(stmt, If):
                self._split_if(stmt, scalars, tensors)
            elif ends_phase(stmt.value):
                tensors.append(replace(stmt, value=rebuild(stmt.value, self._operand)))
            elif self._record_kind(stmt):
                tensors += self._tensor_statements(stmt)
            else:  # a scalar that both arms assign has the union of both ranges
                new = range_of(stmt.value, self.ranges)
                self.ranges[stmt.target] = new.union(self.ranges.get(stmt.target, new))
                scalars.append(stmt)
        return tuple(scalars), tuple(tensors)

    def _split_if(self, stmt: If, scalars: list[Stmt], tensors: list[Stmt]) -> None:
        then_scalars, then_tensors = self.split(stmt.then)
        else_scalars, else_tensors = self.split(stmt.orelse)
        if then_scalars or else_scalars:
            scalars.append(replace(stmt, then=then_scalars, orelse=else_scalars))
        if then_tensors or else_tensors:
            branch = replace(stmt, then=then_tensors, orelse=else_tensors)
            tensors.append(self._lift_common_scale(branch))

    def _record_kind(self, stmt: Assign) -> bool:
        """Record the kind of an assigned name; return whether the statement belongs to a sweep."""
        kind = kind_of(stmt.value, self.kinds.__getitem__)
        known = self.kinds.get(stmt.target)
        self.kinds[stmt.target] = kind.join(known) if known else kind
        is_scalar = self.kinds[stmt.target].is_scalar
        return not is_scalar or stmt.target.name in self.algorithm.stored_tensors

    def _tensor_statements(self, stmt: Assign) -> list[Stmt]:
        """Return a tensor statement in linear form, or no statement if its value is inlined."""
        read = set(refs(stmt.value))
        inlined_quotes = [quote for ref, (_, quote) in self.expansions.items() if ref in read]
        form = self._linear(stmt.value)
        quote = tuple(
            dict.fromkeys([*(line for lines in inlined_quotes for line in lines), *stmt.quote])
        )
        # A copy of a name to its next version is dropped unless a second arm assigns the version.
        is_droppable = is_self_copy(Assign(stmt.target, form)) and not self._is_joined(stmt.target)
        if is_droppable or self._can_expand(stmt.target, form):
            self.expansions[stmt.target] = (form.terms, quote)
            return []
        value = self._with_copy_if_needed(stmt.target, form)
        return [replace(stmt, value=value, quote=quote)]

    def _operand(self, expr: Expr) -> Expr:
        """Return the operand of a reduction or matrix op: a name, or a linear form."""
        if not self.is_tensor(expr) or (isinstance(expr, Ref) and expr not in self.expansions):
            return expr
        return self._linear(expr)

    def _linear(self, expr: Expr) -> Linear:
        def expand(ref: Ref) -> Terms | None:
            return self.expansions[ref][0] if ref in self.expansions else None

        def as_written(sum_: Expr) -> bool:
            return derives_from_rounding(sum_, self.rounded)

        return Linearizer(self.is_tensor, expand, self.ranges, as_written).linear(expr)

    def _can_expand(self, target: Ref, form: Linear) -> bool:
        """Tell whether a statement's value can be inlined where its target is read."""
        if target.name in self.stored or target.name == self.algorithm.grad or target in self.held:
            return False
        if len(form.terms) != 1 or self._is_joined(target) or not self.kinds[target].is_tensor:
            return False
        if not _is_scaled_name(form.terms[0]) and self.use_counts[target] != 1:
            return False
        return not self._overwritten_before_last_use(target, form)

    def _is_joined(self, target: Ref) -> bool:
        """Tell whether both arms of a branch assign a version."""
        return sum(a.target == target for a in assigns(self.algorithm.rule)) > 1

    def _overwritten_before_last_use(self, target: Ref, form: Expr) -> bool:
        """Tell whether a name that the form reads is overwritten before the target's last use."""
        assigned_at = next(
            i for i, (event, ref) in enumerate(self.events) if event != "read" and ref == target
        )
        copies = self._copies_of(target)
        read_at = [
            i for i, (event, ref) in enumerate(self.events) if event == "read" and ref in copies
        ]
        if not read_at:
            return False
        names = {r.name for r in refs(form) if not self.kinds[r].is_scalar}
        names |= {name for r in refs(form) for name in self.copied_from.get(r, ())}
        names |= {self.scaled_names[name] for name in names if name in self.scaled_names}
        between = self.events[assigned_at + 1 : max(read_at)]
        return any(event == "write" and ref.name in names for event, ref in between)

    def _copies_of(self, target: Ref) -> set[Ref]:
        """Return a name's version, and the later versions that are copies of it on some path."""
        copies = {target}
        for stmt in assigns(self.algorithm.rule):
            if stmt.value in copies and is_self_copy(stmt):
                copies.add(stmt.target)
        return copies

    def _with_copy_if_needed(self, target: Ref, form: Linear) -> Expr:
        """Return a form, or a copy if the form is a tensor that is overwritten too early."""
        term = form.terms[0]
        is_name = len(form.terms) == 1 and _is_scaled_name(term) and is_number(term.coefficient, 1)
        if not is_name or target.name in self.stored or target.name in {r.name for r in refs(form)}:
            return form
        if self._overwritten_before_last_use(target, form):
            return Call("copy", term.factors)
        (source,) = refs(form)
        self.copied_from[target] = self.copied_from.get(source, frozenset()) | {source.name}
        return form

    def _lift_common_scale(self, stmt: If) -> If:
        """Move a scale that both arms apply to a name out of the branch, to where it is read."""
        for target in _joined_targets(stmt):
            forms = [_scaled_factor(arm, target) for arm in (stmt.then, stmt.orelse)]
            scales = {f.terms[0].coefficient for f in forms if f is not None}
            if target.name in self.stored or None in forms or len(scales) != 1:
                continue
            scale = scales.pop()
            num_assigns = sum(a.target == target for a in assigns((stmt,)))
            all_assigns = [a for a in assigns(self.algorithm.rule) if a.target == target]
            is_assigned_outside = len(all_assigns) > num_assigns  # in an arm around this branch
            if is_number(scale, 1) or is_assigned_outside or self._must_keep_scale(target, stmt):
                continue
            bare = replace(target, name=f"{target.name}_unscaled")
            self.kinds[bare] = self.kinds[target]
            self.scaled_names[bare.name] = target.name
            self.expansions[target] = ((Term(scale, (bare,)),), ())
            stmt = replace(
                stmt,
                then=_assigning_bare_value(stmt.then, target, bare),
                orelse=_assigning_bare_value(stmt.orelse, target, bare),
            )
        return stmt

    def _must_keep_scale(self, target: Ref, stmt: If) -> bool:
        """Tell whether an arm reads the scaled target, or its source is overwritten too early."""
        if any(target in refs(e) for e in expressions((stmt,))):
            return True
        forms = (a.value for a in assigns((stmt,)) if a.target == target)
        return any(self._overwritten_before_last_use(target, form) for form in forms)


def _uses(expr: Expr) -> Iterator[Ref]:
    """Yield every name as often as an expression's linear form reads it: in a square, twice."""
    match expr:
        case Ref():
            yield expr
        case Call("**", (a, Const(2))):
            yield from (*_uses(a), *_uses(a))
        case _:
            for child in children(expr):
                yield from _uses(child)


def _is_scaled_name(term: Term) -> bool:
    return len(term.factors) == 1 and isinstance(term.factors[0], Ref) and not term.divisors


def _events(program: Program) -> Iterator[tuple[str, Ref]]:
    """Yield every "read", "write" or "copy" of a name, in order. A copy keeps the name's value."""
    for stmt in program:
        if isinstance(stmt, Assign):
            yield from (("read", r) for r in refs(stmt.value))
            yield ("copy" if is_self_copy(stmt) else "write", stmt.target)
        else:
            yield from (("read", r) for r in refs(stmt.condition))
            yield from _events(stmt.then)
            yield from _events(stmt.orelse)


def _joined_targets(stmt: If) -> list[Ref]:
    """Return the versions that both arms of a branch assign, outside of inner branches."""
    ends = {s.target for s in stmt.orelse if isinstance(s, Assign)}
    return [s.target for s in stmt.then if isinstance(s, Assign) and s.target in ends]


def _scaled_factor(arm: Program, target: Ref) -> Linear | None:
    """Return the form that an arm assigns to the target if it is one scaled factor, else None."""
    for stmt in arm:
        if isinstance(stmt, Assign) and stmt.target == target and isinstance(stmt.value, Linear):
            terms = stmt.value.terms
            if len(terms) == 1 and len(terms[0].factors) == 1 and not terms[0].divisors:
                return stmt.value
    return None


def _assigning_bare_value(arm: Program, target: Ref, bare: Ref) -> Program:
    """Return an arm that, instead of the target, assigns `bare`: the value without its scale."""
    return tuple(
        replace(
            stmt,
            target=bare,
            value=replace(stmt.value, terms=(replace(stmt.value.terms[0], coefficient=ONE),)),
        )
        if isinstance(stmt, Assign) and stmt.target == target and isinstance(stmt.value, Linear)
        else stmt
        for stmt in arm
    )


def rounded_refs(rule: Program) -> frozenset[Ref]:
    """Return the names of a rule in SSA form whose values derive from a rounding of this step."""
    rounded: set[Ref] = set()
    while True:
        derived = {a.target for a in assigns(rule) if derives_from_rounding(a.value, rounded)}
        if derived <= rounded:
            return frozenset(rounded)
        rounded |= derived


def derives_from_rounding(expr: Expr, rounded: frozenset[Ref] | set[Ref]) -> bool:
    """Tell whether an expression calls a rounding or reads a name that derives from one.

    A `where` derives from its two values only: its condition adds no digits.
    """
    stack = [expr]
    while stack:
        node = stack.pop()
        op = node.op if isinstance(node, Call) else ""
        if op in STORAGE_OPS or (isinstance(node, Ref) and node in rounded):
            return True
        stack += children(node)[1:] if op == "where" else children(node)
    return False
