"""Find what in a rule needs the step count on the host, where a modifier counts on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from optgen.spec.composition.parts import Part


def why_steps_count_on_host(part: Part) -> str:
    """Return what in a rule needs the step count on the host; "" if nothing does.

    An `if` needs it whose condition follows from the count. So does a state with the dtype of
    torch's classes, which is one number on the host.
    """
    states = {argument.arg: declared for argument, declared in part.states}
    inputs = set(part.inputs[2:3])
    _, dependent = _branch_on(part, inputs)
    condition, dependent = _branch_on(part, inputs | (dependent & states.keys()))
    if condition is not None:
        return f"the branch `if {ast.unparse(condition)}`"
    for name, declared in states.items():
        if name in dependent and isinstance(declared, ast.Call) and _has_dtype_of_torch(declared):
            return f"the state `{name}`"
    return ""


def _branch_on(part: Part, names: set[str]) -> tuple[ast.expr | None, set[str]]:
    """Return the first condition that follows from names, and all names that follow from them."""
    dependent, first = set(names), None
    for stmt in _in_order(part.body):
        if isinstance(stmt, ast.Assign) and _names([stmt.value]) & dependent:
            dependent |= _names(stmt.targets)
        if first is None and isinstance(stmt, ast.If) and _names([stmt.test]) & dependent:
            first = stmt.test
    return first, dependent


def _in_order(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those of their branches, from top to bottom."""
    for stmt in statements:
        yield stmt
        if isinstance(stmt, ast.If):
            yield from _in_order((*stmt.body, *stmt.orelse))


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def _has_dtype_of_torch(declared: ast.Call) -> bool:
    return any(
        keyword.arg == "dtype" and ast.literal_eval(keyword.value) == "torch"
        for keyword in declared.keywords
        if isinstance(keyword.value, ast.Constant)
    )
