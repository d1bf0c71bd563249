"""Give the parts of a composition names that fit together."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from optgen.ir.ops import CALLABLE_OPS
from optgen.spec.composition.check_parts import check_fit
from optgen.spec.composition.find_parts import (
    STAGES,
    WRAPPING_STAGE,
    Part,
    all_names,
    bound_names,
    own_names,
)
from optgen.spec.reserved_names import DECLARATIONS

_STAGE_ORDER = list(STAGES)


@dataclass(frozen=True)
class NamedParts:
    """An optimizer and modifiers in the order of their stages, with names that fit together.

    * `param`, `grad`, `step`: the optimizer's names; "" if no part counts steps.
    * `update`: the variable that holds the update of the parameter.
    * `rule_grad`: the name of the gradient that the rule starts from, after the modifiers of the
      gradient. Modifiers of the update read it.
    * `moment`: the state whose role is "second_moment"; "" if there is none.
    * `modified_moment`: the variable with the moment after its modifiers, which the rule reads
      instead of the state.
    * `waiting_states`: empty if the rest of a step always runs. Otherwise, for each state that a
      part calls `fresh` on, the name of an added state. The added state is 1 until the rest of a
      step has run for the first time, and then 0.
    * `used_names`: all names that are in use.
    """

    base: Part
    modifiers: tuple[Part, ...]
    param: str
    grad: str
    step: str
    update: str
    rule_grad: str
    moment: str
    modified_moment: str
    waiting_states: dict[str, str]
    used_names: set[str]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The optimizer and the modifiers."""
        return (self.base, *self.modifiers)

    def modifiers_of(self, *changed_values: str) -> list[Part]:
        """Return the modifiers that change one of these values of `STAGES`, such as "update"."""
        return [part for part in self.modifiers if part.changed_value in changed_values]


def with_fitting_names(base: Part, modifiers: Sequence[Part]) -> NamedParts:
    """Return parts whose names fit together.

    Args:
        base: the optimizer; its decorator has no `base=`.
        modifiers: in the order in which the user lists them. They run in the order of their stages.

    Raises:
        CompositionError: two parts declare one name or one checkpoint key, two modifiers store the
            parameter, or a part lacks what another one needs.
    """
    ordered = sorted(modifiers, key=lambda part: _STAGE_ORDER.index(part.stage))
    check_fit(base, ordered)
    base_arguments = [argument.arg for argument, _ in base.hypers]
    ordered = [spell_out_norms(part, base_arguments) for part in ordered]
    arguments = {argument.arg for part in ordered for argument, _ in part.hypers}
    used_names = all_names(base) | arguments
    clashes = sorted(own_names(base) & arguments)  # the modifiers' arguments keep their names
    base = renamed(base, {name: unused_name(name, used_names) for name in clashes})
    param, grad, *steps = base.inputs
    step = steps[0] if steps else ""
    if not step and any("t" in part.inputs for part in ordered):
        step = unused_name("t", used_names)
    update = unused_name("update", used_names)
    grad_is_read_later = any(
        "g" in part.inputs for part in ordered if part.changed_value != "gradient"
    )
    rule_grad = (
        unused_name("gradient", used_names)
        if grad_is_read_later and grad in base.assigned_names
        else grad
    )
    moment = next(iter(base.with_role("second_moment")), "")
    modified_moment = unused_name("second_moment", used_names)
    inputs = {"p": param, "g": grad, "t": step, "u": update, "lr": "lr", "v": modified_moment}
    renamed_parts = []
    for part in ordered:
        names = inputs if part.changed_value == "gradient" else {**inputs, "g": rule_grad}
        renamed_parts.append(_with_names_of_optimizer(part, names, used_names))
        used_names |= all_names(renamed_parts[-1])
    return NamedParts(
        base,
        tuple(renamed_parts),
        param=param,
        grad=grad,
        step=step,
        update=update,
        rule_grad=rule_grad,
        moment=moment,
        modified_moment=modified_moment,
        waiting_states=_waiting_states((base, *renamed_parts), used_names),
        used_names=used_names,
    )


def _waiting_states(parts: Sequence[Part], used_names: set[str]) -> dict[str, str]:
    """Return the states that parts call `fresh` on, each with the name of its added state."""
    if not any(part.stage == WRAPPING_STAGE for part in parts):
        return {}
    fresh_states = {name: None for part in parts for name in part.fresh_states}
    return {name: unused_name(f"{name}_waits", used_names) for name in fresh_states}


def _with_names_of_optimizer(part: Part, inputs: Mapping[str, str], used_names: set[str]) -> Part:
    """Return a modifier with the optimizer's names for its inputs, and free names of its own."""
    names = {name: inputs[name] for name in part.inputs}
    clashes = sorted(own_names(part) & (used_names | {*DECLARATIONS, *CALLABLE_OPS}))
    used_names |= all_names(part)
    return renamed(
        part, names | {name: unused_name(f"{name}_{part.name}", used_names) for name in clashes}
    )


class _Rename(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.copy_location(ast.arg(self.names.get(node.arg, node.arg)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.names.get(node.name, node.name)
        return self.generic_visit(node)


def renamed(part: Part, names: Mapping[str, str]) -> Part:
    """Return a part with other names. Checkpoint keys do not change.

    The arguments and variables of a helper are local, and keep their names.
    """
    part = part.copy()
    for node in part.definitions:
        local_names = bound_names(node) if isinstance(node, ast.FunctionDef) else set()
        _Rename({name: new for name, new in names.items() if name not in local_names}).visit(node)
    for node in part.programs:
        _Rename(names).visit(node)
    own_name = part.node.name
    _Rename(names).visit(part.node)
    part.node.name = own_name
    weights, step, guard = (names.get(n, n) for n in (part.weights, part.step, part.guard))
    return replace(part, weights=weights, step=step, guard=guard)


def unused_name(name: str, used_names: set[str]) -> str:
    """Return the name, or the name with the first free number. Add the result to `used_names`."""
    number = 1
    candidate = name
    while candidate in used_names:
        number += 1
        candidate = f"{name}{number}"
    used_names.add(candidate)
    return candidate


_REDUCTION_OF_SQUARES = {"norm": "sum", "rms": "mean"}
"""For each function, the reduction of the squares: the function is its square root."""


class _SpellOut(ast.NodeTransformer):
    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id=name), args=[x], keywords=scope) if name in self.names:
                square = ast.BinOp(x, ast.Pow(), ast.Constant(2))
                reduction = ast.Call(
                    ast.Name(_REDUCTION_OF_SQUARES[name], ast.Load()), [square], scope
                )
                root = ast.Call(ast.Name("sqrt", ast.Load()), [reduction], [])
                return ast.fix_missing_locations(ast.copy_location(root, node))
        return node


def spell_out_norms(part: Part, arguments: Collection[str]) -> Part:
    """Return a part whose calls of `norm` or `rms` are spelled out if an argument has that name.

    `norm(x)` becomes `sqrt(sum(x ** 2))`, and `rms(x)` becomes `sqrt(mean(x ** 2))`.
    """
    clashes = _REDUCTION_OF_SQUARES.keys() & set(arguments)
    if not clashes:
        return part
    part = part.copy()
    for node in (part.node, *part.definitions, *part.programs):
        _SpellOut(clashes).visit(node)
    return part
