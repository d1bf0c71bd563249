"""Write the rule of a composition, block by block: the parts in the order of their stages."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import indent

from optgen.contract.states import Condition
from optgen.spec.composition.find_parts import WRAPPING_STAGE, Part, reads, rest_after
from optgen.spec.composition.rename_parts import NamedParts, unused_name
from optgen.spec.composition.update_form import UpdateForm, replace_fresh, replace_name
from optgen.spec.scope import condition_of_size
from optgen.spec.source import nodes_of


@dataclass(frozen=True)
class Block:
    """Lines of a composition's text, and the node of a part that they print.

    The node has its place in the file of the part. It is None where a composition adds lines. A
    part without a node is that of a comment, which names the part above its statements.
    """

    text: str
    part: Part | None = None
    node: ast.AST | None = None
    level: int = 0

    @property
    def indentation(self) -> str:
        """The spaces before each line."""
        return "    " * self.level

    @property
    def lines(self) -> list[str]:
        """The lines of the text, indented."""
        return indent(self.text, self.indentation).split("\n")


def indented(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks one level deeper."""
    return (replace(block, level=block.level + 1) for block in blocks)


def write_rule(named: NamedParts) -> list[Block]:
    """Return the blocks of the rule, not indented."""
    requirements = [stmt for part in named.parts for stmt in part.requirements]
    return [
        *(Block(ast.unparse(stmt)) for stmt in requirements),
        *_RuleWriter(named, step_count=named.step).blocks(named.modifiers_of("gradient")),
    ]


@dataclass(frozen=True)
class _RuleWriter:
    """Writer of the rest of a step, after some modifiers of the gradient.

    `step_count` is the name that the rest of the step reads as its step count. `guards` are
    conditions, each with the names that change only if the condition is true.
    """

    named: NamedParts
    step_count: str
    guards: tuple[tuple[str, frozenset[str]], ...] = ()

    def blocks(self, modifiers: Sequence[Part]) -> list[Block]:
        """Return the blocks of these modifiers and of everything after them."""
        if not modifiers:
            return list(self._rule_and_rest())
        part, *others = modifiers
        has_own_count = bool(part.step) and self._step_is_read(others)
        body = self._body(part, others)
        guards = ((part.guard, self._param_and_states()),) if part.guard else ()
        rest_writer = replace(self, step_count=part.step if has_own_count else self.step_count)
        if part.stage == WRAPPING_STAGE:
            return self._wrapped(part, body, rest_writer, others)
        rest_writer = replace(rest_writer, guards=(*self.guards, *guards))
        return [*self._blocks_of_part(part, body), *rest_writer.blocks(others)]

    def _wrapped(
        self, part: Part, body: Sequence[ast.stmt], rest_writer: _RuleWriter, others: Sequence[Part]
    ) -> list[Block]:
        """Return the blocks of a modifier that runs the rest of the step only in some steps.

        The rest is written inside the `if` that ends the modifier. But a reduction over several
        parameters cannot stand in a branch, and the host does not know the value of a guard. If the
        rest has such a reduction or there is a guard, the rest runs in every step, and changes
        nothing while the condition is false.
        """
        parts = (*others, *self._after_gradients())
        if self.guards or any(map(_reduces_over_parameters, parts)):
            return self._run_always(part, body, rest_writer, others)
        resets = (Block(f"{name} = 0") for name in self.named.waiting_states.values())
        rest = indented([*rest_writer.blocks(others), *resets])
        return [*self._marks_of_new_states(), *self._blocks_of_part(part, body), *rest]

    def _run_always(
        self, part: Part, body: Sequence[ast.stmt], rest_writer: _RuleWriter, others: Sequence[Part]
    ) -> list[Block]:
        """Return the blocks of a modifier whose last `if` becomes a variable.

        The rest of the step then runs in every step, and the variable guards its assignments.
        """
        *before, last = body
        assert isinstance(last, ast.If)
        named = self.named
        ready = unused_name(f"{part.name}_now", named.used_names)
        assignment = ast.Assign([ast.Name(ready, ast.Store())], last.test)
        guard_of_states = AssignmentGuard(part.state_names, ready)
        guarded = [guard_of_states.visit(copy.deepcopy(stmt)) for stmt in last.body]
        # A group's state has one value for all parameters, so it cannot depend on `ready`.
        shared = {name for each in others for name in each.group_states}
        guard = ready, self._param_and_states() - shared
        rest = replace(rest_writer, guards=(*self.guards, guard)).blocks(others)
        resets = (f"{name} = where({ready}, 0, {name})" for name in named.waiting_states.values())
        own = self._blocks_of_part(part, [*before, assignment, *guarded])
        return [*self._marks_of_new_states(), *own, *rest, *map(Block, resets)]

    def _marks_of_new_states(self) -> Iterator[Block]:
        """Yield the blocks that set a waiting state to 1 if this step has created its state."""
        for state, waits in self.named.waiting_states.items():
            text = f"if fresh({state}):\n    {waits} = 1"
            when = next(
                filter(None, (part.existence_condition(state) for part in self.named.parts)), ""
            )
            if Condition.of(when).is_fact:
                when += f"({self.named.param})"
            elif condition_of_size(when, self.named.param):
                when = f"factored({self.named.param}) and {when}"
            yield Block(f"if {when}:\n{indent(text, '    ')}" if when else text)

    def _after_gradients(self) -> tuple[Part, ...]:
        return (self.named.base, *self.named.modifiers_of("moment", "update", "store", "observe"))

    def _body(self, part: Part, others: Sequence[Part]) -> list[ast.stmt]:
        """Return the statements of a modifier, without a step count that no later part reads."""
        if part.step and not self._step_is_read(others):
            return _without_variable(part, part.body, part.step)
        return part.body

    def _step_is_read(self, modifiers: Sequence[Part]) -> bool:
        """Tell whether these modifiers of the gradient, or later parts, read the step count.

        Parts after a modifier with its own count read that count instead.
        """
        step = self.named.step
        if not modifiers:
            return any(reads(stmt, step) for part in self._after_gradients() for stmt in part.body)
        part, *others = modifiers
        is_read_here = any(reads(stmt, step) for stmt in self._body(part, others))
        return is_read_here or (not part.step and self._step_is_read(others))

    def _rule_and_rest(self) -> Iterator[Block]:
        """Yield the blocks of the rule, and of the modifiers after it."""
        named = self.named
        if named.rule_grad != named.grad:
            yield Block(f"{named.rule_grad} = {named.grad}")
        yield from self._followed_weights()
        update_modifiers = named.modifiers_of("update", "store")
        body = self._with_moments(named.base.body)
        if update_modifiers:
            names = (
                unused_name(f"{named.param}_next", named.used_names) for _ in itertools.count()
            )
            form = UpdateForm(named.param, named.update, names)
            yield from self._blocks_of_part(named.base, form.block(body))
            for part in update_modifiers:
                yield from self._blocks_of_part(part, part.body)
            if update_modifiers[-1].changed_value != "store":
                value = ast.parse(f"{named.param} = {named.param} + {named.update}").body[0]
                yield Block(ast.unparse(self._guarded(value)))
        else:
            yield from self._blocks_of_part(named.base, body)
        for part in named.modifiers_of("observe"):
            yield from self._blocks_of_part(part, part.body)

    def _followed_weights(self) -> Iterator[Block]:
        """Yield the blocks by which weights follow a parameter that was changed between steps."""
        for part in self.named.modifiers:
            if part.follows:
                x, p = part.weights, self.named.param
                follow = ast.parse(f"{x} = where(rounded({x}) == {p}, {x}, {p})").body[0]
                for node in ast.walk(follow):
                    ast.copy_location(node, part.node)
                yield from self._blocks_of_part(part, [follow])

    def _with_moments(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the rule with the modifiers of its second moment inserted.

        They stand after the last assignment of the moment. Later statements read the modified
        moment. The state itself keeps the value of the rule.
        """
        named = self.named
        moment_statements = [stmt for part in named.modifiers_of("moment") for stmt in part.body]
        rest = rest_after(body, named.moment) if moment_statements else None
        if rest is None:
            return list(body)
        copy_of_moment = ast.parse(f"{named.modified_moment} = {named.moment}").body
        later_statements = [
            replace_name(stmt, named.moment, named.modified_moment) for stmt in rest
        ]
        return [
            *body[: len(body) - len(rest)],
            *copy_of_moment,
            *moment_statements,
            *later_statements,
        ]

    def _blocks_of_part(self, part: Part, statements: Sequence[ast.stmt]) -> Iterator[Block]:
        """Yield the blocks of a part, after a comment with its name."""
        yield Block("")
        yield Block(f"# {part.name}", part)
        for stmt in statements:
            rewritten = self._guarded(self._with_current_names(part, stmt))
            rewritten = ast.fix_missing_locations(rewritten)
            yield Block(ast.unparse(rewritten), part, rewritten)

    def _with_current_names(self, part: Part, stmt: ast.stmt) -> ast.stmt:
        """Return a statement with the current names of the step count and the parameter."""
        named, node = self.named, stmt
        if self.step_count != named.step:
            node = replace_name(node, named.step, self.step_count)
        if named.waiting_states:
            node = replace_fresh(node, named.waiting_states)
        weights = next((each.weights for each in named.modifiers if each.weights), "")
        if weights and (part is named.base or part.changed_value == "update"):
            node = replace_name(node, named.param, weights)
        return node

    def _guarded(self, stmt: ast.stmt) -> ast.stmt:
        """Return a statement that changes a guarded name only if its guards are true."""
        for guard, names in reversed(self.guards):
            stmt = AssignmentGuard(names, guard).visit(stmt)
        return stmt

    def _param_and_states(self) -> frozenset[str]:
        """Return the names of the parameter and of all states."""
        states = (part.state_names for part in self.named.parts)
        return frozenset({self.named.param}.union(*states))


def _without_variable(part: Part, body: Sequence[ast.stmt], name: str) -> list[ast.stmt]:
    """Return statements without the assignments to a variable, if they do not read it."""
    if name in part.state_names or any(reads(stmt, name) for stmt in body):
        return list(body)
    remaining = []
    for stmt in body:
        if isinstance(stmt, ast.If):
            then, orelse = (_without_variable(part, arm, name) for arm in (stmt.body, stmt.orelse))
            if not then and not orelse:
                continue
            stmt = ast.copy_location(ast.If(stmt.test, then or [ast.Pass()], orelse), stmt)
        match stmt:
            case ast.Assign(targets=[ast.Name(id=assigned)]) if assigned == name:
                pass
            case _:
                remaining.append(stmt)
    return remaining


def _reduces_over_parameters(part: Part) -> bool:
    """Tell whether a part reduces over several parameters."""
    keywords = nodes_of((*part.body, *part.definitions), ast.keyword)
    return any(keyword.arg == "over" for keyword in keywords)


class AssignmentGuard(ast.NodeTransformer):
    """Rewriter of assignments to some names: `m = x` becomes `m = where(condition, x, m)`."""

    def __init__(self, names: Container[str], condition: str) -> None:
        self.names, self.condition = names, condition

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                node.value = self._guarded(name, value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if len(names) == len(targets) == len(values):  # else the spec reader refuses it
                    guarded = map(self._guarded, names, values)
                    node.value = ast.Tuple([*guarded], ast.Load())
        return node

    def _guarded(self, name: str, value: ast.expr) -> ast.expr:
        if name not in self.names:
            return value
        operand_names = ("where", self.condition, name)
        where, condition, old = (ast.Name(each, ast.Load()) for each in operand_names)
        return ast.Call(where, [condition, value, old], [])
