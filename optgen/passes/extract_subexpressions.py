"""Give names of their own to values that later passes and printers read by name.

* Items of tuples and properties of the parameter: a condition or a `Finish` reads only names.
* Reductions and matrix ops. Each ends a phase, so a plan is cut at these statements.
* Products and decompositions that a rule on whole matrices uses several times.
* Random numbers, so that they are drawn before they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from optgen.contract.constants import NUM_SEEDS
from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.kinds import TENSOR, Kind, declared_kinds, names_of_rule
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Program,
    Ref,
    Stmt,
    assigns,
    children,
    expressions,
    map_expressions,
    map_statements,
    names_read,
    rebuild,
    refs,
    walk,
)
from optgen.ir.ops import LINEAR_ALGEBRA, OPS, PROPERTIES, RANDOM_OPS, STORAGE_OPS
from optgen.ir.plan import Phase, Plan, Stream, Sweep
from optgen.ir.reserved_in_python import free_name
from optgen.passes.descriptive_names import description, matrix_word_name


def extract_items(algorithm: Algorithm) -> Algorithm:
    """Return a rule with named items, before SSA form. An elementwise rule stays as it is.

    A `Finish` between two sweeps reads only names.
    """
    if algorithm.elementwise:
        return algorithm
    used_names = names_of_rule(algorithm)
    names: dict[Expr, Ref] = {}

    def with_names(expr: Expr) -> Expr:
        match expr:
            case Call("is_none", _):
                return expr
            case Call("item", (Ref(values), Const(index))):
                if expr not in names:
                    names[expr] = Ref(free_name(f"{values}_{index}", used_names))
                    used_names.add(names[expr].name)
                return names[expr]
        return rebuild(expr, with_names)

    # Names such as `beta1`, to which the rule assigns bare items and nothing else. A statement that
    # assigns an item to any other name may become a part of a `Finish`.
    items = {a.target.name for a in assigns(algorithm.rule) if is_item(a.value)}
    items -= {a.target.name for a in assigns(algorithm.rule) if not is_item(a.value)}
    items -= set(declared_kinds(algorithm))

    def changed(stmt: Assign) -> Assign:
        names_an_item = is_item(stmt.value) and stmt.target.name in items
        return stmt if names_an_item else replace(stmt, value=with_names(stmt.value))

    rule = map_statements(algorithm.rule, changed, with_names)
    assignments: Program = tuple(Assign(name, item) for item, name in names.items())
    return replace(algorithm, rule=(*assignments, *rule))


def extract_properties(algorithm: Algorithm) -> Algorithm:
    """Return a rule, before SSA form, that begins by naming the properties that conditions read.

    Conditions may read only names.
    """
    used_names = names_of_rule(algorithm)
    assignments: dict[str, Assign] = {}

    def named(expr: Expr) -> Expr:
        if isinstance(expr, Call) and expr.op in STORAGE_OPS:  # its last operand names the dtype
            return replace(expr, args=(*map(named, expr.args[:-1]), expr.args[-1]))
        if not isinstance(expr, Call) or expr.op not in PROPERTIES:
            return rebuild(expr, named)
        if expr.op not in assignments:
            target = Ref(free_name(f"param_{expr.op}", used_names))
            used_names.add(target.name)
            assignments[expr.op] = Assign(target, expr)
        return assignments[expr.op].target

    def in_conditions(expr: Expr) -> Expr:
        is_condition = isinstance(expr, Call) and OPS[expr.op].category in ("comparison", "logic")
        return named(expr) if is_condition else rebuild(expr, in_conditions)

    rule = map_statements(
        algorithm.rule, lambda stmt: replace(stmt, value=in_conditions(stmt.value)), named
    )
    return replace(algorithm, rule=(*assignments.values(), *rule))


def reuse_item_names(program: Program) -> Program:
    """Return a scalar program that reads `eps1`, not `eps[0]`, after `eps1 = eps[0]`.

    Run this pass right before printing: earlier passes learn the type of `eps[0] is None` from the
    declaration of `eps`.
    """
    assign_counts = Counter(assign.target.name for assign in assigns(program))
    names: dict[Expr, Ref] = {}

    def named(expr: Expr) -> Expr:
        return names.get(expr) or rebuild(expr, named)

    out: Program = ()
    for stmt in program:
        if isinstance(stmt, Assign) and is_item(stmt.value):
            out += (stmt,)
            if assign_counts[stmt.target.name] == 1:
                names[stmt.value] = stmt.target
        else:
            out += map_expressions((stmt,), named)
    return out


def is_item(value: Expr) -> bool:
    """Tell whether a value is one item of a tuple."""
    return isinstance(value, Call) and value.op == "item"


_PHASE_ENDING_CATEGORIES = ("reduction", "wide reduction", "matrix")


def extract_reductions(algorithm: Algorithm) -> Algorithm:
    """Return an SSA rule in which each reduction or matrix op is the whole value of a statement.

    Equal reductions of one parameter are computed once. Equal reductions over several parameters
    are not merged: a plan for another shape might not merge them, and all parameters must take part
    in the same reductions. After a matrix op, reductions are computed again, because no number, row
    or column is kept across it. The operand of a matrix op gets a name too, under which the sweep
    before the op stores it.
    """
    assign_counts = Counter(a.target for a in assigns(algorithm.rule))
    joined = {ref for ref, count in assign_counts.items() if count > 1}
    declared = set(declared_kinds(algorithm))
    namer = _ReductionNamer(names_of_rule(algorithm), declared=declared, joined=joined)
    return replace(algorithm, rule=namer.program(algorithm.rule, {}))


def ends_phase(expr: Expr) -> bool:
    """Tell whether a value is a reduction or a matrix op, known only when its phase has ended."""
    return isinstance(expr, Call) and OPS[expr.op].category in _PHASE_ENDING_CATEGORIES


def is_matrix_op(expr: Expr) -> bool:
    """Tell whether a value is the result of a matrix op."""
    return isinstance(expr, Call) and OPS[expr.op].category == "matrix"


@dataclass
class _Namer:
    """Namer of equal values. `known` in its methods maps values to their names."""

    used_names: set[str]
    new_statements: list[Assign] = field(default_factory=list)  # before the present statement

    def program(self, program: Program, known: dict[Expr, Ref]) -> Program:
        """Rewrite a block. Names that an arm gives to values are not known after the branch."""
        out: list[Stmt] = []
        for stmt in program:
            self.new_statements = []
            if isinstance(stmt, Assign):
                rewritten: Stmt = replace(stmt, value=self.assigned_value(stmt, known))
            else:
                rewritten = replace(stmt, condition=self.named_inside(stmt.condition, known))
            out += [replace(s, quote=stmt.quote, place=stmt.place) for s in self.new_statements]
            if isinstance(rewritten, If):
                arms = (rewritten.then, rewritten.orelse)
                then, orelse = (self.program(arm, dict(known)) for arm in arms)
                rewritten = replace(rewritten, then=then, orelse=orelse)
            out.append(rewritten)
        return tuple(out)

    def assigned_value(self, stmt: Assign, known: dict[Expr, Ref]) -> Expr:
        """Return the new value of a statement."""
        raise NotImplementedError

    def named_inside(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        """Return an expression with names for values in it."""
        raise NotImplementedError

    def assign(self, wanted_name: str, value: Expr) -> Ref:
        """Assign a value to a new name, before the present statement."""
        ref = Ref(free_name(wanted_name, self.used_names))
        self.used_names.add(ref.name)
        self.new_statements.append(Assign(ref, value))
        return ref


@dataclass
class _ReductionNamer(_Namer):
    """Namer of reductions and matrix ops."""

    declared: set[str] = field(default_factory=set)
    joined: set[Ref] = field(default_factory=set)  # names that both arms of a branch assign
    matrix_results: set[str] = field(default_factory=set)  # names

    def assigned_value(self, stmt: Assign, known: dict[Expr, Ref]) -> Expr:
        value = self._statement_value(stmt.value, known)
        # The target of a reduction or matrix op may have no other assignment.
        has_other_values = stmt.target in self.joined or stmt.target.name in self.declared
        if ends_phase(value) and has_other_values:
            value = self._named(value, known)
        if is_matrix_op(value):
            self.matrix_results.add(stmt.target.name)
        if ends_phase(value):
            known[value] = stmt.target
        return value

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

    def named_inside(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
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
        op = rebuild(op, lambda child: self.named_inside(child, known))
        assert isinstance(op, Call)
        first, *rest = op.args
        # Between two matrix ops lies a sweep, which stores the operand of the second op. So if this
        # operand is the result of another matrix op, it is assigned to a local, too.
        if not isinstance(first, Ref) or first.name in self.declared | self.matrix_results:
            op = replace(op, args=(self.assign(description(first) + "_matrix", first), *rest))
        if op not in known:  # after a matrix op, reductions are computed again
            for reduction in [e for e in known if not is_matrix_op(e)]:
                del known[reduction]
        return op

    def _named(self, expr: Expr, known: dict[Expr, Ref]) -> Ref:
        if expr not in known:
            assert isinstance(expr, Call)
            known[expr] = self.assign(f"{description(expr.args[0])}_{expr.op}", expr)
            if is_matrix_op(expr):
                self.matrix_results.add(known[expr].name)
        return known[expr]


_VIEWS = ("transpose", "diag")  # they compute nothing


def extract_products(algorithm: Algorithm) -> Algorithm:
    """Return an SSA rule on whole matrices that computes no product or decomposition twice.

    A product that is used several times gets a statement and a name of its own. The same holds for
    decompositions; "product" means both here. A power uses its operand several times, because a
    square is computed as `x * x`. Elementwise ops are cheap beside products and stay in place.

    If a block uses the eigenvalues and the eigenvectors of one matrix, their statements stand next
    to each other, so that lowerings can print one decomposition.
    """
    repeated = _repeated_products(expressions(algorithm.rule))
    kinds = declared_kinds(algorithm)
    lasting = lasting_versions(algorithm.rule)
    namer = _ProductNamer(names_of_rule(algorithm), repeated=repeated, kinds=kinds, lasting=lasting)
    return replace(algorithm, rule=namer.program(algorithm.rule, {}))


def lasting_versions(rule: Program) -> frozenset[Ref]:
    """Return the last version of each name, which no other one overwrites, of an SSA rule."""
    targets = sorted((a.target for a in assigns(rule)), key=lambda ref: ref.version)
    return frozenset({ref.name: ref for ref in targets}.values())


def _other_answers(values: Iterable[Expr]) -> dict[Expr, Expr]:
    """Return the eigenvectors for the eigenvalues of each matrix, and the other way round.

    Matrices of which the values need only one are left out.
    """
    words = [node for value in values for node in walk(value) if isinstance(node, Call)]
    all_vectors = {word for word in words if word.op == "eigenvectors"}
    found: dict[Expr, Expr] = {}
    for word in words:
        vectors = replace(word, op="eigenvectors")
        if word.op == "eigenvalues" and vectors in all_vectors:
            found |= {word: vectors, vectors: word}
    return found


def shared_decompositions(program: Program) -> frozenset[Ref]:
    """Return the names of the eigenvalues and eigenvectors of the same matrices."""
    others = _other_answers(stmt.value for stmt in assigns(program))
    return frozenset(stmt.target for stmt in assigns(program) if stmt.value in others)


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
class _ProductNamer(_Namer):
    """Namer of repeated products.

    `others` has the other answers of decompositions. A block does not compute an answer that only
    its branches need. `lasting` has the versions that no later version overwrites.
    """

    repeated: frozenset[Expr] = frozenset()
    others: Mapping[Expr, Expr] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    lasting: frozenset[Ref] = frozenset()

    def program(self, program: Program, known: dict[Expr, Ref]) -> Program:
        outside = self.others
        self.others = _other_answers(s.value for s in program if isinstance(s, Assign))
        named = super().program(program, known)
        self.others = outside
        return named

    def assigned_value(self, stmt: Assign, known: dict[Expr, Ref]) -> Expr:
        """Rewrite a statement's value.

        A repeated product without a name stays the value, and is known by the statement's target.
        If the rule overwrites the target later, the product gets a name of its own.
        """
        may_stay = self._has_name(stmt.value) and stmt.target in self.lasting
        if not may_stay or stmt.value in known:
            return self.named_inside(stmt.value, known)
        known[stmt.value] = stmt.target
        return self._ready(stmt.value, known)

    def named_inside(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        if expr in known:
            return known[expr]
        inner = self._ready(expr, known)
        if not self._has_name(expr):
            return inner
        assert isinstance(expr, Call)
        known[expr] = self.assign(matrix_word_name(expr, self.kinds), inner)
        return known[expr]

    def _has_name(self, expr: Expr) -> bool:
        return expr in self.repeated or expr in self.others

    def _ready(self, expr: Expr, known: dict[Expr, Ref]) -> Expr:
        """Return an expression with names in it. Its other answer is assigned right before it."""
        inner = rebuild(expr, lambda child: self.named_inside(child, known))
        other = self.others.get(expr)
        if other is None or other in known:
            return inner
        assert isinstance(inner, Call)
        assert isinstance(other, Call)
        (matrix,) = inner.args
        if not isinstance(matrix, Ref):
            matrix = self.assign(f"{description(matrix)}_matrix", matrix)
        known[other] = self.assign(
            matrix_word_name(other, self.kinds), replace(other, args=(matrix,))
        )
        return replace(inner, args=(matrix,))


Draws = Mapping[str, Call]
"""The name of each tensor of random numbers, with the call that draws it."""


def extract_draws(plan: Plan) -> tuple[Plan, Draws]:
    """Return the plan with a name in place of every call that draws, and the calls by name."""
    names: dict[Call, str] = {}
    used_names = {ref.name for ref in plan.kinds}

    def named(expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.op not in RANDOM_OPS:
            return rebuild(expr, named)
        if expr not in names:
            names[expr] = free_name("uniform", used_names)
            used_names.add(names[expr])
        return Ref(names[expr])

    changed = plan.map_sweeps(lambda body: map_expressions(body, named))
    kinds: dict[Ref, Kind] = {**plan.kinds, **{Ref(name): TENSOR for name in names.values()}}
    return replace(changed, kinds=kinds), {name: call for call, name in names.items()}


def draw_first(plan: Plan) -> Plan:
    """Return the plan with the draws of random numbers at the front of its only sweep."""
    named, draws = extract_draws(plan)
    statements = tuple(Assign(Ref(name), call) for name, call in draws.items())
    return named.map_sweeps(lambda body: (*statements, *body))


def with_listed_streams(
    plan: Plan, read: Callable[[str], Expr], read_key: Callable[[str], Expr]
) -> Plan:
    """Return the plan whose draws read the streams of parameters where they stand.

    The scalar program, which runs once for a bucket, then reads no such stream.

    Args:
        plan: The plan after `hoist_scalars`.
        read: Returns the expression that reads the state of this name.
        read_key: Returns the expression of the number below `NUM_SEEDS` that a draw takes for it.
    """
    states = {state.symbol for state in plan.algorithm.stream_states()}
    keys: dict[Expr, Expr] = {
        assign.target: assign.value
        for assign in assigns(plan.scalars)
        if states.intersection(ref.name for ref in refs(assign.value))
    }

    def listed(expr: Expr) -> Expr:
        match expr:
            case Call("floor", (Call("%", (Ref(name), Const(divisor))),)) if (
                name in states and divisor == NUM_SEEDS
            ):
                return read_key(name)
        if isinstance(expr, Ref) and expr.name in states:
            return read(expr.name)
        return listed(keys[expr]) if expr in keys else rebuild(expr, listed)

    changed = plan.map_sweeps(lambda body: map_expressions(body, listed))
    names = {ref: plan.kinds[Ref(state)] for state in states for ref in refs(read(state))}
    return replace(changed, kinds={**plan.kinds, **names})


def draws_of(program: Program) -> Draws:
    """Return the calls that draw a program's random numbers, by the names of their results."""
    values = {a.target.name: a.value for a in assigns(program)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Call) and value.op in RANDOM_OPS
    }


def with_random_streams(plan: Plan, draws: Draws) -> Plan:
    """Return the plan with random numbers as streams of the sweeps that read them."""

    def changed(phase: Phase) -> Phase:
        if not isinstance(phase, Sweep):
            return phase
        names = (name for name in draws if name in names_read(phase.body))
        random_streams = (Stream(name, "local", stored=False) for name in names)
        return replace(phase, streams=(*phase.streams, *random_streams))

    return replace(plan, phases=tuple(map(changed, plan.phases)))
