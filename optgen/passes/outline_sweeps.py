"""Outline the elementwise parts of a rule on whole matrices as functions over lists of tensors.

The rule's statements stay in the author's branches, and torch computes its matrix words. The
elementwise statements between two matrix words become one call of a function, which is one sweep.
So that one call computes many statements, an elementwise statement is delayed until a matrix word
needs it, or until the end of its branch. A function overwrites the parameter and states; its other
results are new tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache

from optgen.ir.algorithm import Algorithm, IdentityKey
from optgen.ir.kinds import GROUP, HEIGHT, TENSOR, Axes, Kind, Stage, kind_of
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
    copy_source,
    expressions,
    map_statements,
    names_assigned,
    names_read,
    only_factor,
    refs,
    rename_program,
    rename_refs,
    walk,
)
from optgen.ir.ops import OPS
from optgen.ir.plan import Plan, is_reduction
from optgen.ir.reserved_in_python import free_name
from optgen.passes.all_passes import OUTLINED
from optgen.passes.hoist_between_sweeps import as_plain_arithmetic
from optgen.passes.plan_rule import target_plans, why_uncut
from optgen.passes.separate_matrix_words import (
    MatrixWordSeparator,
    has_rows_and_columns,
    sweep_axes,
)
from optgen.passes.sweep_functions import EMPTY_LIKE, SweepBuilder, SweepFunction

IN_ROWS = "in_rows"
"""The op that repeats a number of each matrix for the rows of another value."""
MOST_FUNCTIONS = 16
"""Largest number of functions of a rule. Each is compiled by itself, in half a second."""


@dataclass(frozen=True)
class OutlinedRule:
    """Plans of a rule that calls functions, and these functions.

    A call is a statement whose target and op have the name of the function. `why_none` says in a
    few words why a rule on whole matrices has no functions.
    """

    plans: tuple[Plan, ...] = ()
    functions: tuple[Algorithm, ...] = ()
    why_none: str = ""


def outline_sweeps(algorithm: Algorithm) -> OutlinedRule:
    """Return a rule on whole matrices with its elementwise parts as functions.

    The result is empty if the rule is cut into sweeps itself, or reduces over several parameters.
    torch computes the statements that would need more than `MOST_FUNCTIONS` functions.
    """
    if algorithm.is_function or algorithm.base or not why_uncut(algorithm):
        return OutlinedRule()
    if algorithm.is_wide:
        return OutlinedRule(
            why_none="the rule has whole matrices and reduces over several parameters"
        )
    return _outline(IdentityKey(algorithm))


def with_sweeps(algorithm: Algorithm) -> tuple[Algorithm, ...]:
    """Return an algorithm, the functions of its programs, and the functions of its sweeps."""
    return (*algorithm.with_functions, *outline_sweeps(algorithm).functions)


@lru_cache(maxsize=4)  # several lowerings use the result of one rule
def _outline(key: IdentityKey) -> OutlinedRule:
    functions: list[Algorithm] = []
    outlined = []
    for plan in target_plans(key.algorithm, OUTLINED):
        outlined.append(_Outliner(plan, functions).plan())
    if not functions:
        return OutlinedRule(why_none="the rule has no elementwise parts")
    return OutlinedRule(tuple(outlined), tuple(functions))


@dataclass
class _Outliner:
    """Outliner of one plan.

    `functions` has the functions of earlier plans, which this plan may call, and gains new ones.
    `shared` has the variables whose tensors may have a second name. A function overwrites the
    tensors of the variables in `in_place`.
    """

    whole_plan: Plan
    functions: list[Algorithm]
    kinds: dict[Ref, Kind] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)

    def plan(self) -> Plan:
        """Return the plan, whose sweep calls functions."""
        algorithm = self.whole_plan.algorithm
        self.kinds |= self.whole_plan.kinds
        self.used_names |= {ref.name for ref in self.kinds}
        (sweep,) = self.whole_plan.sweeps
        self.body = MatrixWordSeparator(self.kinds, self.used_names).program(sweep.body)
        self.left_to_torch = _boolean_variables(self.body) | _number_variables(
            self.body, self.kinds
        )
        written = [state for state in algorithm.device_states() if state.written]
        self.stored = {algorithm.param, *(state.symbol for state in written)}
        unfused = [stmt for stmt in assigns(self.body) if self._axes(stmt) is None]
        self.shared = {name for stmt in unfused for name in _names_of_shared_memory(stmt)}
        numbers = {state.symbol for state in written if state.on_device}  # copied to float64
        self.in_place = frozenset(self.stored - self.shared - numbers)
        body = self._block(self.body)
        return replace(self.whole_plan, phases=(replace(sweep, body=body),), kinds=self.kinds)

    def _axes(self, stmt: Assign) -> Axes | None:
        """Return the axes of a statement's sweep; None if no sweep can compute it."""
        is_left = not self.left_to_torch.isdisjoint(_names(stmt))
        return None if is_left else sweep_axes(stmt, self.kinds)

    def _block(self, program: Program) -> Program:
        """Return a block whose elementwise statements are calls, as late as possible."""
        out: list[Stmt] = []
        waiting: list[Assign] = []
        for stmt in program:
            if isinstance(stmt, Assign) and self._axes(stmt) is not None:
                name, axes = stmt.target.name, self.kinds[stmt.target].axes
                earlier = (each.target for each in waiting if each.target.name == name)
                if any(self.kinds[target].axes is not axes for target in earlier):
                    out += self._calls(waiting)
                    waiting = []
                waiting.append(stmt)
            else:
                needed = _needed_before(stmt, waiting)
                out += self._calls([each for each in waiting if each in needed])
                waiting = [each for each in waiting if each not in needed]
                if isinstance(stmt, If):
                    then, orelse = self._block(stmt.then), self._block(stmt.orelse)
                    stmt = replace(stmt, then=then, orelse=orelse)
                out.append(stmt)
        return (*out, *self._calls(waiting))

    def _calls(self, statements: Sequence[Assign]) -> Iterator[Stmt]:
        """Yield a call for the statements of each shape, or the statements themselves.

        A number, row or column goes with the tensors that it is computed from.
        """
        places: list[tuple[int, Axes]] = []  # of each statement: the level and axes of its call
        calls: dict[tuple[int, Axes], list[Assign]] = {}
        for index, stmt in enumerate(statements):
            before = [
                place
                for place, other in zip(places, statements[:index], strict=True)
                if _are_ordered(other, stmt)
            ]
            axes = self._axes(stmt)
            assert axes is not None
            of_latest = max(before, default=(0, axes))[1]
            if not has_rows_and_columns(axes) and axes | of_latest == of_latest:
                axes = of_latest
            level = max((level + (other is not axes) for level, other in before), default=0)
            places.append((level, axes))
            calls.setdefault((level, axes), []).append(stmt)
        for (_, axes), of_call in sorted(calls.items(), key=lambda call: call[0][0]):
            yield from self._call(of_call, axes)

    def _call(self, statements: Sequence[Assign], axes: Axes) -> Iterator[Stmt]:
        """Yield a call in place of statements of one call, or the statements themselves."""
        targets = {stmt.target.name for stmt in statements}
        others = [s for s in assigns(self.body) if not any(s is each for each in statements)]
        read = {r.name for s in others for r in refs(s.value)} | _read_by_conditions(self.body)
        dead_names = {s.target.name for s in others} - read - self.stored - self.shared
        names = {function.name for function in self.functions}
        names |= {program.function.name for program in self.whole_plan.algorithm.programs}
        name = free_name(f"sweep{len(self.functions) + 1}", self.used_names | names)
        builder = SweepBuilder(self.whole_plan.algorithm, self.in_place, self.kinds, axes)
        rows, in_rows = self._with_rows(statements, axes)
        results = targets & (read | self.stored)
        new = builder.build(in_rows, results, dead_names, name)
        is_negation = len(statements) == 1 and _is_negation(statements[0])
        is_left = is_negation or not self._keep_axes(statements, in_rows, results)
        function = None if is_left or new is None else self._known_function(new.function)
        if new is None or function is None:
            yield from map(_as_new_tensor, statements)
            return
        assigned_later = {*new.created, *new.reused}
        like = next(Ref(n) for n in new.axes if new.axes[n] is axes and n not in assigned_later)
        yield from (Assign(row, Call(IN_ROWS, (Ref(n), like))) for n, row in rows.items())
        yield from self._call_statements(in_rows, new, function)

    def _with_rows(
        self, statements: Sequence[Assign], axes: Axes
    ) -> tuple[dict[str, Ref], Sequence[Assign]]:
        """Return the names of rows for the numbers of matrices, and statements that read these."""
        read = {
            r.name for s in statements for r in refs(s.value) if self.kinds[r].axes is Axes.MATRIX
        }
        read -= {stmt.target.name for stmt in statements}
        rows = {name: Ref(free_name(f"{name}_rows", self.used_names)) for name in sorted(read)}
        self.kinds |= dict.fromkeys(rows.values(), Kind(Stage.DEVICE, Axes(axes & (1 | HEIGHT))))

        def in_rows(ref: Ref) -> Ref:
            return rows.get(ref.name, ref)

        return rows, [replace(s, value=rename_refs(s.value, in_rows)) for s in statements]

    def _keep_axes(
        self, statements: Sequence[Assign], in_rows: Sequence[Assign], results: Set[str]
    ) -> bool:
        """Tell whether all values have the same axes where rows stand for numbers of matrices.

        A column minus such a row is a matrix, whose sum counts each element of the column for each
        row. What is computed from a number of a matrix alone may become a row, but no sum of it,
        and no result.
        """
        new_kinds = dict(self.kinds)

        def axes(value: Expr, kinds: Mapping[Ref, Kind]) -> Axes:
            return kind_of(value, kinds.__getitem__).axes

        for stmt, of_rows in zip(statements, in_rows, strict=True):
            new_kinds[stmt.target] = kind_of(of_rows.value, new_kinds.__getitem__)
            old, new = self.kinds[stmt.target].axes, new_kinds[stmt.target].axes
            may_become_row = old is Axes.MATRIX and stmt.target.name not in results
            if old is not new and (is_reduction(stmt.value) or not may_become_row):
                return False
            for summed, of_rows_summed in zip(_summed(stmt), _summed(of_rows), strict=True):
                if axes(summed, self.kinds) is not axes(of_rows_summed, new_kinds):
                    return False
        return True

    def _call_statements(
        self, statements: Sequence[Assign], sweep_function: SweepFunction, function: Algorithm
    ) -> Iterator[Assign]:
        """Yield the call of a function, between the statements that create and name its lists."""
        quote = tuple(dict.fromkeys(line for stmt in statements for line in stmt.quote))
        for name, axes in sweep_function.axes.items():
            self.used_names.add(name)
            self.kinds.setdefault(Ref(name), Kind(Stage.DEVICE, axes))
        for name, like in sweep_function.created.items():
            yield Assign(Ref(name), Call(EMPTY_LIKE, like), quote)
        self.used_names.add(function.name)
        for name, dead in sweep_function.reused.items():
            note = f"{function.name} reads {dead} by the name {name}, and then overwrites it"
            yield Assign(Ref(name), Ref(dead), (note,))
        scalars = {r.name: r for s in statements for r in refs(s.value) if self.kinds[r].is_scalar}
        numbers = (
            Call("keyword", (Const(hyper.name), scalars[own.name]))
            for hyper, own in zip(function.hypers, sweep_function.function.hypers, strict=True)
        )
        lists = (Ref(name) for name in sweep_function.arguments)
        self.kinds[Ref(function.name)] = TENSOR
        yield Assign(Ref(function.name), Call(function.name, (*lists, *numbers)), quote)
        for name, after in sweep_function.renamed.items():
            yield Assign(Ref(name), Ref(after), quote)

    def _known_function(self, new: Algorithm) -> Algorithm | None:
        """Return a known function that equals a new one, which else becomes known.

        Return None if there are too many functions.
        """
        for other in self.functions:
            if _without_names(other) == _without_names(new):
                return other
        if len(self.functions) == MOST_FUNCTIONS:
            return None
        self.functions.append(new)
        return new


def _without_names(function: Algorithm) -> Algorithm:
    """Return a function with numbers for names, and without the statements of the rule."""
    targets = (stmt.target.name for stmt in assigns(function.rule))
    names = (*function.lists, *(hyper.name for hyper in function.hypers), *targets)
    numbers = {name: str(number) for number, name in enumerate(dict.fromkeys(names))}
    rule = rename_program(function.rule, lambda ref: Ref(numbers[ref.name]))
    return replace(
        function,
        name="",
        lists=(),
        param="",
        grad="",
        overwritten=(),
        hypers=(),
        states=tuple(replace(s, symbol="", key="") for s in function.states),
        rule=map_statements(rule, lambda stmt: replace(stmt, quote=())),
    )


def _needed_before(stmt: Stmt, waiting: Sequence[Assign]) -> list[Assign]:
    """Return the waiting statements that must be computed before a statement, in order."""
    needed: list[Assign] = []
    for each in reversed(waiting):
        if any(_are_ordered(each, later) for later in (stmt, *needed)):
            needed.insert(0, each)
    return needed


def _are_ordered(a: Stmt, b: Stmt) -> bool:
    """Tell whether one of two statements assigns what the other reads or assigns."""
    assigned = names_assigned((a,)), names_assigned((b,))
    return not (assigned[0].isdisjoint(_names(b)) and assigned[1].isdisjoint(_names(a)))


def _as_new_tensor(stmt: Assign) -> Assign:
    """Return a statement whose target is a new tensor: a plain copy of a name copies the tensor.

    Otherwise a sweep that later overwrites one of the two names would change the other.
    """
    source = copy_source(stmt)
    return stmt if source is None else replace(stmt, value=Call("copy", (source,)))


def _is_negation(stmt: Assign) -> bool:
    """Tell whether a statement only changes a sign, as `maximize` does. torch does so as fast."""
    match as_plain_arithmetic(stmt.value):
        case Call("neg", (Ref(),)):
            return True
    return False


def _names(stmt: Stmt) -> set[str]:
    return names_assigned((stmt,)) | names_read((stmt,))


def _read_by_conditions(program: Program) -> set[str]:
    values = {id(stmt.value) for stmt in assigns(program)}
    conditions = (e for e in expressions(program) if id(e) not in values)
    return {ref.name for expr in conditions for ref in refs(expr)}


def _boolean_variables(program: Program) -> frozenset[str]:
    """Return the variables that are true or false."""
    return _least_set(program, lambda stmt, known: _is_boolean(stmt.value, known))


def _summed(stmt: Assign) -> list[Expr]:
    """Return the operands of the reductions in a statement."""
    return [x.args[0] for x in walk(stmt.value) if isinstance(x, Call) and is_reduction(x)]


def _number_variables(program: Program, kinds: Mapping[Ref, Kind]) -> frozenset[str]:
    """Return the variables that are numbers of each tensor in one arm, one of Python in another.

    So are those that are computed from such variables and from numbers of Python.
    """

    def is_number(stmt: Assign, known: Set[str]) -> bool:
        def kind_there(ref: Ref) -> Kind:
            return GROUP if ref.name in known else kinds[ref]

        kind = kinds[stmt.target]
        if kind.is_scalar or kind.axes is not Axes.NONE:
            return False
        return kind_of(as_plain_arithmetic(stmt.value), kind_there).is_scalar

    return _least_set(program, is_number)


def _least_set(program: Program, belongs: Callable[[Assign, Set[str]], bool]) -> frozenset[str]:
    """Return the targets of statements that belong to a set, given those known to belong to it."""
    known: set[str] = set()
    while True:
        names = {s.target.name for s in assigns(program) if belongs(s, known)}
        if names <= known:
            return frozenset(known)
        known |= names


def _is_boolean(value: Expr, known: Set[str]) -> bool:
    """Tell whether a value is true or false; `known` has the variables that are."""
    match as_plain_arithmetic(value):
        case Ref(name):
            return name in known
        case Call("where", (_, a, b)):
            return _is_boolean(a, known) or _is_boolean(b, known)
        case Call(op, _):
            category = OPS[op].category if op in OPS else ""
            boolean_ops = ("both", "either", "opposite", "holds", "truth", "is_none", "fresh")
            return category in ("comparison", "logic") or op in boolean_ops
    return False


_VIEWS = ("transpose", "diag", "where")
"""Words whose results may share memory with their operands."""
_SHARED = ("identity", "gaussian", "random", "random16")
"""Words whose result may be one tensor that all positions of a list share."""


def _names_of_shared_memory(stmt: Assign) -> set[str]:
    """Return the variables that may share memory after a statement, with others or in a list."""
    value = only_factor(stmt.value)
    op = value.op if isinstance(value, Call) else ""
    if isinstance(value, Ref) or op in _VIEWS:
        return _names(stmt)
    return {stmt.target.name} if op in _SHARED else set()
