"""Give the parts of a composition names that fit together, and refuse parts that do not."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optgen.spec.composition.parts import STAGES, Part, declared_key
from optgen.spec.composition.renaming import all_names, own_names, renamed, unused

_ORDER = list(STAGES)


class CompositionError(ValueError):
    """Parts do not go together. The message says which, why, and what to do."""


@dataclass(frozen=True)
class Named:
    """An optimizer and modifiers in the order of their stages, with names that fit together.

    * `param`, `grad`, `step`: the optimizer's names; "" if no part counts steps.
    * `update`: the variable that holds the update of the parameter.
    * `seen_grad`: the gradient as the rule finds it. Modifiers of the update read it.
    * `moment`: the state whose role is "second_moment". `used_moment`: the variable that the rule
      reads instead, after the modifiers of the moment.
    * `taken`: all names that are in use.
    """

    base: Part
    modifiers: tuple[Part, ...]
    param: str
    grad: str
    step: str
    update: str
    seen_grad: str
    moment: str
    used_moment: str
    taken: set[str]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The optimizer and the modifiers."""
        return (self.base, *self.modifiers)

    def of(self, *changes: str) -> list[Part]:
        """Return the modifiers that change these."""
        return [part for part in self.modifiers if part.changes in changes]


def fit(base: Part, modifiers: Sequence[Part]) -> Named:
    """Return parts whose names fit together.

    Args:
        base: the optimizer; its decorator has no `base=`.
        modifiers: in the order in which the user lists them. They take effect in the order of their
            stages.

    Raises:
        CompositionError: two parts declare one name or one checkpoint key, two modifiers store the
            parameter, or a part lacks what another one needs.
    """
    ordered = sorted(modifiers, key=lambda part: _ORDER.index(part.stage))
    _check_listed_once(ordered)
    _check_declared(base, ordered)
    _check_needs(base, ordered)
    arguments = {argument.arg for part in ordered for argument, _ in part.hypers}
    taken = all_names(base) | arguments
    hidden = sorted(own_names(base) & arguments)  # the modifiers' arguments keep their names
    base = renamed(base, {name: unused(name, taken) for name in hidden})
    param, grad, *steps = base.inputs
    counts = any("t" in part.inputs for part in ordered)
    step = steps[0] if steps else unused("t", taken) if counts else ""
    update = unused("update", taken)
    reads = any("g" in part.inputs for part in ordered if part.changes != "gradient")
    seen_grad = unused("gradient", taken) if reads and grad in base.assigned else grad
    moment = base.with_role("second_moment")
    used_moment = unused("second_moment", taken)
    inputs = {"p": param, "g": grad, "t": step, "u": update, "lr": "lr", "v": used_moment}
    placed = []
    for part in ordered:
        seen = inputs if part.changes == "gradient" else {**inputs, "g": seen_grad}
        placed.append(_in_names(part, seen, taken))
        taken |= all_names(placed[-1])
    found = (param, grad, step, update, seen_grad, moment, used_moment)
    return Named(base, tuple(placed), *found, taken)


def _in_names(part: Part, inputs: Mapping[str, str], taken: set[str]) -> Part:
    """Return a modifier with the optimizer's names for its inputs, and free names of its own."""
    names = {name: inputs[name] for name in part.inputs}
    clashes = sorted(own_names(part) & taken)
    return renamed(part, names | {name: unused(f"{name}_{part.name}", taken) for name in clashes})


def _check_listed_once(modifiers: Sequence[Part]) -> None:
    names = [part.name for part in modifiers]
    for name in names:
        if names.count(name) > 1:
            raise CompositionError(f"{name} is listed twice: leave one out")


def _check_declared(base: Part, modifiers: Sequence[Part]) -> None:
    known: dict[str, tuple[str, str]] = {}
    for part in (base, *modifiers):
        hypers = [("hyperparameter", argument.arg) for argument, _ in part.hypers]
        keys = [("state", declared_key(declaration)) for _, declaration in part.states]
        for what, name in (*hypers, *keys):
            if name in known:
                its, other = known[name]
                message = f"{part.name} adds the {what} `{name}`, but {other} has a {its} `{name}`"
                raise CompositionError(f"{message}: leave one out")
            known[name] = what, part.name


def _check_needs(base: Part, modifiers: Sequence[Part]) -> None:
    storing = [part.name for part in modifiers if part.changes == "store"]
    if len(storing) > 1:
        message = f"{storing[0]} and {storing[1]} both store the parameter: leave one out"
        raise CompositionError(message)
    moving = [part.name for part in (base, *modifiers) if part.programs]
    if len(moving) > 1:
        message = f"{moving[0]} and {moving[1]} both move the parameter for evaluation"
        raise CompositionError(f"{message}: leave one out")
    if base.option("gradient") == "sparse_only":
        raise CompositionError(f"{base.name} takes sparse gradients only, and modifiers dense ones")
    for part in modifiers:
        if part.changes == "moment" and not base.with_role(part.stage):
            message = f"{part.name} needs a state with the role {part.stage!r}"
            raise CompositionError(f"{message}, which {base.name} does not declare")
    has_rate = any(argument.arg == "lr" for argument, _ in base.hypers)
    for part in modifiers:
        if "lr" in part.inputs and not has_rate:
            message = f"{part.name} needs a learning rate called `lr`"
            raise CompositionError(f"{message}, which {base.name} does not have")
        if part.guard and any(map(_calls_fresh, (base, *modifiers))):
            named = next(each.name for each in (base, *modifiers) if _calls_fresh(each))
            message = f"{part.name} may skip the first step, which {named} asks for with `fresh`"
            raise CompositionError(f"{message}: leave one out")


def _calls_fresh(part: Part) -> bool:
    calls = (n for stmt in part.body for n in ast.walk(stmt) if isinstance(n, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id == "fresh" for call in calls)
