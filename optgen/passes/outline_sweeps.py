"""Outline the elementwise parts of a rule on whole matrices as functions over lists of tensors.

The rule's statements stay in the author's branches, and torch computes its matrix words. The
elementwise statements between two matrix words become one call of a function, which is one sweep.
So that one call computes many statements, an elementwise statement is delayed until a matrix word
needs it, or until the end of its branch. A function overwrites the parameter and states; its other
results are new tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from optgen.ir.algorithm import Algorithm, Hyper, IdentityKey, State
from optgen.ir.execution import why_uncut
from optgen.ir.kinds import Kind
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
    copy_source,
    expressions,
    only_factor,
    refs,
    rename_refs,
)
from optgen.ir.ops import OPS
from optgen.ir.plan import Plan
from optgen.ir.reserved_in_python import free_name
from optgen.passes.all_passes import OUTLINED
from optgen.passes.hoist_between_sweeps import as_plain_arithmetic
from optgen.passes.plan_rule import target_plans
from optgen.passes.separate_matrix_words import MatrixWordSeparator, is_fusable

EMPTY_LIKE = "empty_like"
"""The op that creates the list into which a function writes."""
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

    The result is empty if the rule is cut into sweeps itself, reduces over several parameters, or
    would have more than `MOST_FUNCTIONS` functions.
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
    if len(functions) > MOST_FUNCTIONS:
        needed = f"the rule needs {len(functions)} sweeps between matrix words"
        return OutlinedRule(why_none=f"{needed}, more than {MOST_FUNCTIONS}")
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
        self.booleans = _boolean_variables(self.body)
        device = {s.symbol for s in algorithm.device_states() if s.written and not s.on_device}
        self.stored = {algorithm.param, *device}
        unfused = [stmt for stmt in assigns(self.body) if not self._is_elementwise(stmt)]
        self.shared = {n for stmt in unfused if not _makes_new_tensor(stmt) for n in _names(stmt)}
        self.in_place = frozenset(self.stored - self.shared)
        body = self._block(self.body)
        return replace(self.whole_plan, phases=(replace(sweep, body=body),), kinds=self.kinds)

    def _is_elementwise(self, stmt: Assign) -> bool:
        names = {ref.name for ref in refs(stmt.value)} | {stmt.target.name}
        return names.isdisjoint(self.booleans) and is_fusable(stmt, self.kinds)

    def _block(self, program: Program) -> Program:
        """Return a block whose elementwise statements are calls, as late as possible."""
        out: list[Stmt] = []
        waiting: list[Assign] = []
        for stmt in program:
            if isinstance(stmt, If):
                out += self._calls(waiting)
                waiting = []
                then, orelse = self._block(stmt.then), self._block(stmt.orelse)
                out.append(replace(stmt, then=then, orelse=orelse))
            elif self._is_elementwise(stmt):
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
                out.append(stmt)
        return (*out, *self._calls(waiting))

    def _calls(self, statements: Sequence[Assign]) -> Iterator[Stmt]:
        """Yield a call for the statements of each shape, or the statements themselves."""
        shapes = dict.fromkeys(self.kinds[stmt.target].axes for stmt in statements)
        for axes in shapes:
            of_shape = [stmt for stmt in statements if self.kinds[stmt.target].axes is axes]
            yield from self._call(of_shape)

    def _call(self, statements: Sequence[Assign]) -> Iterator[Stmt]:
        """Yield a call in place of statements of one shape, or the statements themselves."""
        targets = {stmt.target.name for stmt in statements}
        others = [s for s in assigns(self.body) if not any(s is each for each in statements)]
        read = {r.name for s in others for r in refs(s.value)} | _read_by_conditions(self.body)
        dead_names = {s.target.name for s in others} - read - self.stored - self.shared
        names = {function.name for function in self.functions}
        names |= {program.function.name for program in self.whole_plan.algorithm.programs}
        name = free_name(f"sweep{len(self.functions) + 1}", self.used_names | names)
        builder = SweepBuilder(self.whole_plan.algorithm, self.in_place, self.kinds)
        sweep_function = builder.build(statements, targets & (read | self.stored), dead_names, name)
        if sweep_function is None or (self.in_place.isdisjoint(targets) and _is_one_op(statements)):
            yield from map(_as_new_tensor, statements)
        else:
            yield from self._call_statements(statements, sweep_function)

    def _call_statements(
        self, statements: Sequence[Assign], sweep_function: SweepFunction
    ) -> Iterator[Assign]:
        """Yield the call of a function, between the statements that create and name its lists."""
        quote = tuple(dict.fromkeys(line for stmt in statements for line in stmt.quote))
        kind = self.kinds[statements[0].target]
        for name, like in sweep_function.created.items():
            self._declare(name, kind)
            yield Assign(Ref(name), Call(EMPTY_LIKE, (Ref(like),)), quote)
        function = self._shared_function(sweep_function.function)
        self.used_names.add(function.name)
        for name, dead in sweep_function.reused.items():
            note = f"{function.name} reads {dead} by the name {name}, and then overwrites it"
            yield Assign(Ref(name), Ref(dead), (note,))
        scalars = {r.name: r for s in statements for r in refs(s.value) if self.kinds[r].is_scalar}
        numbers = (scalars[hyper.name] for hyper in function.hypers)
        lists = (Ref(name) for name in sweep_function.arguments)
        for name in sweep_function.arguments:
            self._declare(name, kind)
        self.kinds[Ref(function.name)] = kind
        yield Assign(Ref(function.name), Call(function.name, (*lists, *numbers)), quote)
        for name, after in sweep_function.renamed.items():
            yield Assign(Ref(name), Ref(after), quote)
            self._declare(name, kind)

    def _declare(self, name: str, kind: Kind) -> None:
        self.used_names.add(name)
        self.kinds.setdefault(Ref(name), kind)

    def _shared_function(self, function: Algorithm) -> Algorithm:
        """Return the known function that equals this one; add this one if there is none."""
        for other in self.functions:
            if replace(function, name=other.name) == other:
                return other
        self.functions.append(function)
        return function


def _needed_before(stmt: Assign, waiting: Sequence[Assign]) -> list[Assign]:
    """Return the waiting statements that must be computed before a statement, in order."""
    needed: list[Assign] = []
    for each in reversed(waiting):
        if any(
            each.target.name in _names(later) or later.target.name in _names(each)
            for later in (stmt, *needed)
        ):
            needed.insert(0, each)
    return needed


def _as_new_tensor(stmt: Assign) -> Assign:
    """Return a statement whose target is a new tensor: a plain copy of a name copies the tensor.

    Otherwise a sweep that later overwrites one of the two names would change the other.
    """
    source = copy_source(stmt)
    return stmt if source is None else replace(stmt, value=Call("copy", (source,)))


def _is_one_op(statements: Sequence[Assign]) -> bool:
    """Tell whether torch computes statements in one call, as a function would."""
    if len(statements) > 1 or copy_source(statements[0]) is not None:
        return False
    value = as_plain_arithmetic(statements[0].value)
    return not any(isinstance(child, Call) for child in children(value))


def _names(stmt: Assign) -> set[str]:
    return {stmt.target.name, *(ref.name for ref in refs(stmt.value))}


def _read_by_conditions(program: Program) -> set[str]:
    values = {id(stmt.value) for stmt in assigns(program)}
    conditions = (e for e in expressions(program) if id(e) not in values)
    return {ref.name for expr in conditions for ref in refs(expr)}


def _boolean_variables(program: Program) -> frozenset[str]:
    """Return the variables that are true or false."""
    booleans: set[str] = set()
    while True:
        names = {s.target.name for s in assigns(program) if _is_boolean(s.value, booleans)}
        if names <= booleans:
            return frozenset(booleans)
        booleans |= names


def _is_boolean(value: Expr, known: set[str]) -> bool:
    """Tell whether a value is true or false; `known` has the variables that are."""
    match only_factor(value):
        case Ref(name):
            return name in known
        case Call("where", (_, a, b)):
            return _is_boolean(a, known) or _is_boolean(b, known)
        case Call(op, _):
            category = OPS[op].category if op in OPS else ""
            boolean_ops = ("both", "either", "opposite", "holds", "truth", "is_none", "fresh")
            return category in ("comparison", "logic") or op in boolean_ops
    return False


_SHARE_MEMORY = ("transpose", "diag", "identity", "where", "gaussian", "random", "random16")
"""Words whose results may be views, or one tensor that all positions of a list share."""


def _makes_new_tensor(stmt: Assign) -> bool:
    """Tell whether the value of a statement is a new tensor."""
    value = only_factor(stmt.value)
    shares_memory = isinstance(value, Call) and value.op in _SHARE_MEMORY
    return not isinstance(value, Ref) and not shares_memory


@dataclass(frozen=True)
class SweepFunction:
    """Function, and how the rule calls it.

    * `created`: maps each variable that the caller must create to a variable of the same shape.
    * `reused`: maps each variable to the dead variable whose memory it takes.
    * `arguments`: the caller's variables in the order of the function's lists.
    * `renamed`: maps each variable to the name under which the call returns its new value.
    """

    function: Algorithm
    created: Mapping[str, str]
    reused: Mapping[str, str]
    arguments: tuple[str, ...]
    renamed: Mapping[str, str]


@dataclass(frozen=True)
class SweepBuilder:
    """Builder of the functions of a rule.

    * `in_place`: the variables whose tensors a sweep may overwrite: parameter and states.
    * `kinds`: the kind of every variable.
    """

    algorithm: Algorithm
    in_place: frozenset[str]
    kinds: Mapping[Ref, Kind]

    def build(
        self,
        statements: Sequence[Assign],
        outputs: Collection[str],
        dead: Collection[str],
        name: str,
    ) -> SweepFunction | None:
        """Return the function of some statements.

        Return None if the function would write every list that it reads, or no output.

        Args:
            statements: elementwise statements over tensors of one shape.
            outputs: the variables that other statements read, or that the rule stores.
            dead: the variables that no other statement reads; their memory may be reused.
            name: the name of the function.
        """
        assigned = dict.fromkeys(stmt.target.name for stmt in statements)
        read = self._read_before_assigned(statements)
        kept_outputs = [n for n in assigned if n in outputs]
        reused = self._reused(
            statements, kept_outputs, [n for n in read if n in dead and n not in assigned]
        )
        inputs = [n for n in read if n not in reused.values()]
        updated = [n for n in kept_outputs if n in self.in_place]
        if not set(inputs) - set(updated):
            reused, inputs = {}, read  # a function needs a list that it only reads
        only_read = [n for n in inputs if n not in updated]
        if not only_read or not kept_outputs:
            return None
        used_names = {ref.name for ref in self.kinds}
        old_names = {n: free_name(f"{n}_before", used_names) for n in only_read if n in assigned}
        new_names = {n: free_name(f"{n}_after", used_names) for n in old_names if n in kept_outputs}
        written = [*updated, *(n for n in kept_outputs if n not in updated)]
        numbers = dict.fromkeys(
            r.name for s in statements for r in refs(s.value) if self.kinds[r].is_scalar
        )
        body = _with_inputs(statements, old_names | {old: n for n, old in reused.items()})
        lists = [*written, *(old_names.get(n, n) for n in only_read)]
        function = self._function(name, lists, written, tuple(numbers), body, reused)
        variables = {n: new_names.get(n, n) for n in written} | {
            old_names.get(n, n): n for n in only_read
        }
        return SweepFunction(
            function=function,
            created={
                new_names.get(n, n): only_read[0]
                for n in kept_outputs
                if n not in updated and n not in reused
            },
            reused=reused,
            arguments=tuple(variables[n] for n in function.lists),
            renamed=new_names,
        )

    def _read_before_assigned(self, statements: Sequence[Assign]) -> list[str]:
        """Return the tensors that statements read before they assign them, in order."""
        assigned: set[str] = set()
        read: dict[str, None] = {}
        for stmt in statements:
            names = (r.name for r in refs(stmt.value) if not self.kinds[r].is_scalar)
            read |= dict.fromkeys(n for n in names if n not in assigned)
            assigned.add(stmt.target.name)
        return list(read)

    def _reused(
        self, statements: Sequence[Assign], kept_outputs: Sequence[str], dead: Sequence[str]
    ) -> dict[str, str]:
        """Map each new variable to a dead one that is not read after the new one is assigned."""
        reused: dict[str, str] = {}
        for name in kept_outputs:
            assigned_at = next(i for i, stmt in enumerate(statements) if stmt.target.name == name)
            later = {r.name for stmt in statements[assigned_at + 1 :] for r in refs(stmt.value)}
            is_new = name not in self.in_place and name not in self._read_before_assigned(
                statements
            )
            free = [n for n in dead if n not in later and n not in reused.values()]
            if is_new and free:
                reused[name] = free[0]
        return reused

    def _function(
        self,
        name: str,
        lists: Sequence[str],
        written: Sequence[str],
        numbers: Sequence[str],
        body: Program,
        reused: Mapping[str, str],
    ) -> Algorithm:
        """Return an algorithm over lists: the first written one is its parameter."""
        param, grad = written[0], next(n for n in lists if n not in written)
        others = [n for n in lists if n not in (param, grad)]
        return Algorithm(
            name=name,
            module=self.algorithm.module,
            doc=f"Elementwise part of a step of {self.algorithm.name}, which outlined.py calls.",
            paper="",
            states=tuple(State(n, n, written=n in written) for n in others),
            hypers=tuple(Hyper(number, "number", 0.0) for number in numbers),
            rule=body,
            param=param,
            grad=grad,
            step=None,
            lists=(param, grad, *others),
            is_sweep=True,
            overwritten=tuple(reused.items()),
        )


def _with_inputs(statements: Sequence[Assign], inputs: Mapping[str, str]) -> Program:
    """Return statements without versions, which read old values by other names.

    `inputs` maps a variable to the name of its old value, which is read until a statement assigns
    the variable.
    """
    names_of_old = dict(inputs)

    def current(ref: Ref) -> Ref:
        return Ref(names_of_old.get(ref.name, ref.name))

    out = []
    for stmt in statements:
        value: Expr = rename_refs(as_plain_arithmetic(stmt.value), current)
        names_of_old.pop(stmt.target.name, None)
        out.append(Assign(Ref(stmt.target.name), value, stmt.quote, stmt.place))
    return tuple(out)
