"""Take out of an optimizer what nothing reads after flags are gone."""

from __future__ import annotations

import ast
from collections.abc import Collection

from optgen.contract.states import RANK
from optgen.spec.composition.parts import Part


def without_unread(part: Part) -> Part:
    """Return an optimizer without variables, states and hyperparameters that nothing reads.

    The language refuses these, and only the arms of a flag may have read them.
    """
    part = part.copy()
    while True:
        before = ast.dump(part.node)
        kept_names = {*_names(part, ast.Load), *(a.arg for a, _ in part.states), *part.inputs}
        part.node.body = _WithoutAssignments(kept_names).statements(part.node.body)
        _remove_states(part, {*_names(part, ast.Load, ast.Store)})
        if ast.dump(part.node) == before:
            break
    read_names = {*_names(part, ast.Load), *_named_by_states(part), RANK}
    return without_hypers(part, {a.arg for a, _ in part.hypers} - read_names)


def without_hypers(part: Part, names: Collection[str]) -> Part:
    """Return an optimizer without the declarations of some hyperparameters."""
    part = part.copy()
    kept = [each for each in part.hypers if each[0].arg not in names]
    part.node.args.kwonlyargs = [argument for argument, _ in kept]
    part.node.args.kw_defaults = [declared for _, declared in kept]
    (decorator,) = part.node.decorator_list
    for option in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if option.arg in ("keywords", "group") and isinstance(option.value, ast.Tuple):
            option.value.elts = [
                each
                for each in option.value.elts
                if not (isinstance(each, ast.Constant) and each.value in names)
            ]
    return part


def _remove_states(part: Part, used_names: Collection[str]) -> None:
    """Remove the states that neither the rule nor a program uses."""
    arguments, states = part.node.args, part.states
    kept = [each for each in states if each[0].arg in used_names]
    num_inputs = len(arguments.defaults) - len(states)
    arguments.args = [argument for argument, _ in kept]
    arguments.defaults[num_inputs:] = [declared for _, declared in kept]


def _names(part: Part, *contexts: type[ast.expr_context]) -> set[str]:
    """Return the names that a rule reads or writes, and those that its programs take."""
    used = (n for stmt in part.node.body for n in ast.walk(stmt) if isinstance(n, ast.Name))
    names = {name.id for name in used if isinstance(name.ctx, contexts)}
    for program in part.programs:
        names |= {a.arg for a in (*program.args.posonlyargs, *program.args.kwonlyargs)}
    return names


def _named_by_states(part: Part) -> set[str]:
    """Return the hyperparameters that decide whether a state exists, or how it begins."""
    options = (
        option.value.value
        for _, declared in part.states
        for option in (declared.keywords if isinstance(declared, ast.Call) else ())
        if option.arg in ("when", "init") and isinstance(option.value, ast.Constant)
    )
    return {str(option).removeprefix("not ") for option in options}


class _WithoutAssignments(ast.NodeTransformer):
    """Transformer that removes assignments to names that are not kept."""

    def __init__(self, kept_names: Collection[str]) -> None:
        self.kept_names = kept_names

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that remain."""
        return [kept for stmt in body if (kept := self.visit(stmt)) is not None]

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        (target,) = node.targets
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in names:
            if isinstance(name, ast.Name) and name.id not in self.kept_names:
                name.id = "_"
        is_unread = all(isinstance(name, ast.Name) and name.id == "_" for name in names)
        return None if is_unread else node

    def visit_If(self, node: ast.If) -> ast.If | None:
        node.body, node.orelse = self.statements(node.body), self.statements(node.orelse)
        if not node.body and node.orelse:
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            node.test, node.body, node.orelse = negated, node.orelse, []
        return node if node.body else None
