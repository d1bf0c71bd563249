"""Convert branches for targets that take only some forms of them.

If-conversion gives a branch that a captured graph cannot contain a second, branch-free form. In a
captured step the step count, scalar states and tensor hyperparameters are tensors, whose values the
host must not read. So the second form computes both arms, each under its own names, and a `where`
selects the results. A branch on flags stays a branch. A condition on flags and tensors is split,
with the flags tested first.

Flattening turns `if a: (if b: x)` into `if a and b: x`. Some compilers vectorize a loop only if its
branches are not nested. The conditions are uniform over a tensor, so testing more of them costs
nothing. Statements keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count

from optgen.ir.kinds import Kind, Stage, kind_of
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
    map_expressions,
    map_values,
    names_assigned,
    names_read,
    rebuild,
    refs,
    refs_read,
    rename_program,
)
from optgen.ir.ops import OPS
from optgen.ir.plan import HostCall, Plan

CAPTURABLE = Ref("capturable")
_TENSOR_LOGIC = {"and": "both", "or": "either", "not": "opposite"}


def if_convert(plan: Plan) -> Plan:
    """Return the plan with each branch on possible tensors in both forms; `capturable` chooses.

    `and`, `or` and `not` of possible tensors become `both`, `either` and `opposite`. The `truth` of
    a possible tensor becomes `holds`, which does not read a tensor's value on the host.
    """
    converter = _IfConverter(plan, frozenset(_possible_tensors(plan)), dict(plan.kinds))

    def with_tensor_logic(expr: Expr) -> Expr:
        return use_tensor_logic(expr, converter.may_be_tensor)

    def converted(program: Program) -> Program:
        with_logic = map_values(converter.program(program), with_tensor_logic)
        return map_expressions(with_logic, converter.with_holds)

    new_plan = plan.map_programs(converted)
    return replace(new_plan, kinds=converter.kinds)


def use_tensor_logic(expr: Expr, may_be_tensor: Callable[[Expr], bool]) -> Expr:
    """Return a value with `and`, `or` and `not` of tensors replaced by ops that torch can trace."""
    match expr:
        case Call("and" | "or" | "not" as word, args) if any(map(may_be_tensor, args)):
            return Call(
                _TENSOR_LOGIC[word], tuple(use_tensor_logic(arg, may_be_tensor) for arg in args)
            )
    return rebuild(expr, lambda child: use_tensor_logic(child, may_be_tensor))


def _possible_tensors(plan: Plan) -> set[Ref]:
    """Return the names that may be tensors in a captured step."""
    tensors = {Ref(h.name) for h in plan.algorithm.hypers if h.tensor != "never"}
    tensors |= {ref for ref, kind in plan.kinds.items() if kind.stage >= Stage.PARAM}
    for stmt in assigns(plan.scalars):
        if not tensors.isdisjoint(refs(stmt.value)):
            tensors.add(stmt.target)
    return tensors


@dataclass(frozen=True)
class _IfConverter:
    """If-converter of a plan. `possible_tensors` may be tensors in a captured step."""

    plan: Plan
    possible_tensors: frozenset[Ref]
    kinds: dict[Ref, Kind]

    def program(self, program: Program) -> Program:
        """Return a program with both forms of each branch that needs them."""
        return tuple(map(self._statement, program))

    def _statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Assign):
            return stmt
        if self.may_be_tensor(stmt.condition):
            return self._both_forms(stmt)
        return replace(stmt, then=self.program(stmt.then), orelse=self.program(stmt.orelse))

    def _both_forms(self, stmt: If) -> If:
        """Return a branch with its branch-free form, or with `capturable` added to its condition.

        Adding `capturable` suffices if the branch-free form is the branch's `then` arm.
        """
        branch_free = self._branch_free((stmt,))
        if branch_free == stmt.then and not stmt.orelse:
            return replace(stmt, condition=Call("or", (CAPTURABLE, stmt.condition)))
        return If(CAPTURABLE, branch_free, (stmt,))

    def with_holds(self, expr: Expr) -> Expr:
        """Return an expression with `holds` for the `truth` of possible tensors."""
        match expr:
            case Call("truth", (Ref() as ref,)) if ref in self.possible_tensors:
                return Call("holds", (ref,))
        return rebuild(expr, self.with_holds)

    def may_be_tensor(self, condition: Expr) -> bool:
        """Tell whether a condition may be a tensor in a captured step."""
        for atom in _atoms(condition):
            is_lookup = isinstance(atom, Call) and OPS[atom.op].category == "lookup"
            if not is_lookup and not self.possible_tensors.isdisjoint(refs(atom)):
                return True
        return False

    def _branch_free(self, program: Program, suffix: str = "") -> Program:
        """Return a program without branches on possible tensors; new names end in the suffix."""
        converted = (
            (stmt,) if isinstance(stmt, Assign) else self._branch_free_if(stmt, stmt, suffix)
            for stmt in program
        )
        return tuple(chain.from_iterable(converted))

    def _branch_free_if(self, stmt: If, origin: If, suffix: str) -> Program:
        """Convert one branch; `origin` is the plan's statement that the branch was split from."""
        flag = next((a for a in _atoms(stmt.condition) if not self.may_be_tensor(a)), None)
        if flag is None:
            return self._both_arms(stmt, origin, suffix)
        arms = []
        for answer in (True, False):
            condition = _simplified(stmt.condition, flag, answer)
            if isinstance(condition, Const):
                arm = stmt.then if condition.value else stmt.orelse
                arms.append(self._branch_free(arm, suffix))
            else:
                rest = replace(stmt, condition=condition)
                arms.append(self._branch_free_if(rest, origin, suffix))
        return (replace(stmt, condition=flag, then=arms[0], orelse=arms[1]),) if any(arms) else ()

    def _both_arms(self, stmt: If, origin: If, suffix: str) -> Program:
        """Return both arms in sequence, then a `where` for every name that is read later."""
        suffixes = (f"{suffix}_then", f"{suffix}_else")
        arms = [
            self._branch_free(a, s) for a, s in zip((stmt.then, stmt.orelse), suffixes, strict=True)
        ]
        others, stored = tuple(self._other_statements(origin)), self.plan.algorithm.stored
        used_elsewhere = _names_used(others) | stored | {r.name for r in refs(stmt.condition)}
        assigned = [names_assigned(arm) for arm in arms]
        shared_names = tuple(  # for each arm, the names it assigns that are also used outside of it
            {
                n
                for n in names & (used_elsewhere | _names_used(other))
                if n in set.intersection(*assigned) or self._has_earlier_value(n)
            }
            for names, other in zip(assigned, reversed(arms), strict=True)
        )
        read = refs_read(others)
        selected = {
            a.target.name: a.target
            for names, arm in zip(shared_names, arms, strict=True)
            for a in assigns(arm)
            if a.target.name in names and (a.target in read or a.target.name in stored)
        }
        condition, save_condition = self._saved_condition(stmt.condition, selected)
        selects = []
        for name, target in sorted(selected.items()):
            sides = (  # an arm that does not assign a name keeps the old value
                Ref(name + end if name in names else name)
                for names, end in zip(shared_names, suffixes, strict=True)
            )
            selects.append(Assign(target, Call("where", (condition, *sides))))
        then, orelse = map(self._suffixed, arms, shared_names, suffixes)
        return (*save_condition, *then, *orelse, *selects)

    def _suffixed(self, arm: Program, names: set[str], suffix: str) -> Program:
        """Return an arm that always runs, with a suffix added to the `names` that it assigns.

        A name that a flag may leave unassigned starts with its old value.
        """
        targets = {a.target for a in assigns(arm) if a.target.name in names}
        first = {n: next(s for s in arm if n in names_assigned((s,))) for n in sorted(names)}
        optional = [
            n for n, stmt in first.items() if isinstance(stmt, If) and self._has_earlier_value(n)
        ]
        for ref in targets:
            self.kinds[replace(ref, name=ref.name + suffix)] = self.kinds[ref]
            self.kinds[Ref(ref.name + suffix)] = self.kinds[ref]
        renamed = rename_program(
            arm, lambda r: replace(r, name=r.name + suffix) if r in targets else r
        )
        return (*(Assign(Ref(n + suffix), Ref(n)) for n in optional), *renamed)

    def _has_earlier_value(self, name: str) -> bool:
        """Tell whether a name has an earlier value that an arm may leave unchanged."""
        return len({ref for ref in self.plan.kinds if ref.name == name}) > 1

    def _saved_condition(self, condition: Expr, assigned: dict[str, Ref]) -> tuple[Expr, Program]:
        """Return a condition that all selects can read, and the statements that save it.

        A condition is saved under a new name if a select assigns what it reads.
        """
        if assigned.keys().isdisjoint(r.name for r in refs(condition)):
            return condition, ()
        used_names = {r.name for r in self.plan.kinds}
        name = next(n for i in count(1) if (n := f"condition{i}") not in used_names)
        self.kinds[Ref(name)] = kind_of(condition, self.kinds.__getitem__)
        return Ref(name), (Assign(Ref(name), condition),)

    def _other_statements(self, stmt: If) -> Iterator[Stmt]:
        """Yield every statement of the plan except one."""
        yield from _without(self.plan.scalars, stmt)
        for phase in self.plan.phases:
            if isinstance(phase, HostCall):
                yield from (Assign(phase.target, arg) for arg in phase.args)
            else:
                yield from _without(phase.body, stmt)


def _atoms(condition: Expr) -> Iterator[Expr]:
    """Yield the operands of a condition's `and`, `or` and `not`, at all depths."""
    if isinstance(condition, Call) and OPS[condition.op].category == "logic":
        for arg in condition.args:
            yield from _atoms(arg)
    else:
        yield condition


def _simplified(condition: Expr, atom: Expr, answer: bool) -> Expr:
    """Return a condition simplified for an atom of it whose value is `answer`."""
    if condition == atom:
        return Const(answer)
    if not (isinstance(condition, Call) and OPS[condition.op].category == "logic"):
        return condition
    args = [_simplified(arg, atom, answer) for arg in condition.args]
    if condition.op == "not":
        (arg,) = args
        return Const(not arg.value) if isinstance(arg, Const) else Call("not", (arg,))
    deciding_value = condition.op == "or"
    if Const(deciding_value) in args:
        return Const(deciding_value)
    unknown = [arg for arg in args if not isinstance(arg, Const)]
    if len(unknown) == len(args):
        return replace(condition, args=tuple(args))
    return unknown[0] if unknown else Const(not deciding_value)


def _without(program: Program, excluded: Stmt) -> Program:
    """Return the program without one statement, at any nesting depth."""
    return tuple(
        stmt
        if isinstance(stmt, Assign)
        else replace(
            stmt, then=_without(stmt.then, excluded), orelse=_without(stmt.orelse, excluded)
        )
        for stmt in program
        if stmt is not excluded
    )


def _names_used(program: Program) -> set[str]:
    """Return every name that a program reads or assigns."""
    return names_assigned(program) | names_read(program)


@dataclass(frozen=True)
class BranchFlattener:
    """Flattener of nested branches.

    `is_settled` tells whether the compiler knows a condition's value. A branch on such a condition
    may still contain other branches.
    """

    is_settled: Callable[[Expr], bool]

    def __call__(self, program: Program) -> Program:
        """Return the program with no branch inside an unsettled branch."""
        return tuple(flat for stmt in program for flat in self._flat(stmt))

    def _flat(self, stmt: Stmt) -> Iterator[Stmt]:
        if isinstance(stmt, Assign):
            yield stmt
            return
        stmt = replace(stmt, then=self(stmt.then), orelse=self(stmt.orelse))
        if self.is_settled(stmt.condition) or not self._has_branch((*stmt.then, *stmt.orelse)):
            yield stmt
            return
        yield from self._under_condition(stmt, stmt.condition, stmt.then)
        yield from self._under_condition(stmt, Call("not", (stmt.condition,)), stmt.orelse)

    def _has_branch(self, program: Program) -> bool:
        """Tell whether a program has an unsettled branch."""
        return any(
            not self.is_settled(stmt.condition) or self._has_branch((*stmt.then, *stmt.orelse))
            for stmt in program
            if isinstance(stmt, If)
        )

    def _under_condition(self, outer: If, condition: Expr, arm: Program) -> Iterator[If]:
        """Yield an arm's statements, with each inner branch under both conditions."""
        plain_statements: list[Stmt] = []
        for stmt in arm:
            if isinstance(stmt, Assign):
                plain_statements.append(stmt)
                continue
            if plain_statements:
                yield replace(outer, condition=condition, then=tuple(plain_statements), orelse=())
                plain_statements = []
            yield from self._inner_branch(outer, condition, stmt)
        if plain_statements:
            yield replace(outer, condition=condition, then=tuple(plain_statements), orelse=())

    def _inner_branch(self, outer: If, condition: Expr, inner: If) -> Iterator[If]:
        """Yield a branch of an outer arm under both conditions."""
        if self.is_settled(inner.condition):
            arms = (
                tuple(self._under_condition(outer, condition, a))
                for a in (inner.then, inner.orelse)
            )
            then, orelse = arms
            yield replace(inner, then=then, orelse=orelse)
            return
        for arm_condition, arm in (
            (inner.condition, inner.then),
            (Call("not", (inner.condition,)), inner.orelse),
        ):
            if arm:
                both_conditions = Call("and", (condition, arm_condition))
                yield replace(inner, condition=both_conditions, then=arm, orelse=())
