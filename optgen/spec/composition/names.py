"""Give the parts of a composition names that fit together, and refuse parts that do not."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.ops import CALLABLE_OPS, STORAGE_OPS
from optgen.spec.composition.moments import reads, rest_after
from optgen.spec.composition.parts import STAGES, WRAPPING, Part, declared_key
from optgen.spec.composition.renaming import all_names, own_names, renamed, unused
from optgen.spec.composition.spell_out_norms import spell_out_norms
from optgen.spec.reserved_names import DECLARATIONS

_ORDER = list(STAGES)


class CompositionError(ValueError):
    """Error for parts that do not go together. Its message says which, why, and what to do."""


@dataclass(frozen=True)
class NamedParts:
    """An optimizer and modifiers in the order of their stages, with names that fit together.

    * `param`, `grad`, `step`: the optimizer's names; "" if no part counts steps.
    * `update`: the variable that holds the update of the parameter.
    * `seen_grad`: the gradient as the rule finds it. Modifiers of the update read it.
    * `moment`: the state whose role is "second_moment". `used_moment`: the variable that the rule
      reads instead, after the modifiers of the moment.
    * `waiting`: empty if the rest of a step always runs. Otherwise it maps each state that a part
      asks `fresh` for to an added state. The added state is 1 until the rest of a step runs for the
      first time, and then 0.
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
    waiting: dict[str, str]
    taken: set[str]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The optimizer and the modifiers."""
        return (self.base, *self.modifiers)

    def changing(self, *changes: str) -> list[Part]:
        """Return the modifiers that change one of these values of `STAGES`, such as "update"."""
        return [part for part in self.modifiers if part.changes in changes]


def with_fitting_names(base: Part, modifiers: Sequence[Part]) -> NamedParts:
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
    of_base = [argument.arg for argument, _ in base.hypers]
    ordered = [spell_out_norms(part, of_base) for part in ordered]
    arguments = {argument.arg for part in ordered for argument, _ in part.hypers}
    taken = all_names(base) | arguments
    hidden = sorted(own_names(base) & arguments)  # the modifiers' arguments keep their names
    base = renamed(base, {name: unused(name, taken) for name in hidden})
    param, grad, *steps = base.inputs
    step = steps[0] if steps else ""
    if not step and any("t" in part.inputs for part in ordered):
        step = unused("t", taken)
    update = unused("update", taken)
    is_read = any("g" in part.inputs for part in ordered if part.changes != "gradient")
    seen_grad = unused("gradient", taken) if is_read and grad in base.assigned else grad
    moment = next(iter(base.with_role("second_moment")), "")
    used_moment = unused("second_moment", taken)
    inputs = {"p": param, "g": grad, "t": step, "u": update, "lr": "lr", "v": used_moment}
    renamed_parts = []
    for part in ordered:
        names = inputs if part.changes == "gradient" else {**inputs, "g": seen_grad}
        renamed_parts.append(_with_names_of_optimizer(part, names, taken))
        taken |= all_names(renamed_parts[-1])
    return NamedParts(
        base,
        tuple(renamed_parts),
        param=param,
        grad=grad,
        step=step,
        update=update,
        seen_grad=seen_grad,
        moment=moment,
        used_moment=used_moment,
        waiting=_waiting((base, *renamed_parts), taken),
        taken=taken,
    )


def _waiting(parts: Sequence[Part], taken: set[str]) -> dict[str, str]:
    """Return the states that parts ask `fresh` for, each with the name of its added state."""
    if not any(part.stage == WRAPPING for part in parts):
        return {}
    asked = {name: None for part in parts for name in part.asked_fresh}
    return {name: unused(f"{name}_waits", taken) for name in asked}


def _with_names_of_optimizer(part: Part, inputs: Mapping[str, str], taken: set[str]) -> Part:
    """Return a modifier with the optimizer's names for its inputs, and free names of its own."""
    names = {name: inputs[name] for name in part.inputs}
    clashes = sorted(own_names(part) & (taken | {*DECLARATIONS, *CALLABLE_OPS}))
    taken |= all_names(part)
    return renamed(part, names | {name: unused(f"{name}_{part.name}", taken) for name in clashes})


def _check_listed_once(modifiers: Sequence[Part]) -> None:
    names = [part.name for part in modifiers]
    for name in names:
        if names.count(name) > 1:
            raise CompositionError(f"{name} is listed twice: leave one out")


def _check_declared(base: Part, modifiers: Sequence[Part]) -> None:
    known = dict.fromkeys(base.inputs, ("input", base.name))
    for part in (base, *modifiers):
        hypers = [("hyperparameter", argument.arg) for argument, _ in part.hypers]
        keys = [("state", declared_key(declaration)) for _, declaration in part.states]
        for what, name in (*hypers, *keys):
            if name in known and known[name][1] != part.name:  # the reader checks each part
                other_what, other = known[name]
                message = f"{part.name} adds the {what} `{name}`, "
                message += f"but {other} has a {other_what} `{name}`"
                raise CompositionError(
                    f"{message}: rename one in a spec of yours, or leave one out"
                )
            known[name] = what, part.name


def _check_needs(base: Part, modifiers: Sequence[Part]) -> None:
    """Check that the optimizer has what its modifiers need, and that no two parts conflict."""
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
        if part.changes == "moment":
            _check_moment(base, part)
    _check_rounding(base, modifiers)
    _check_group_states(base, modifiers)
    has_rate = any(argument.arg == "lr" for argument, _ in base.hypers)
    for part in modifiers:
        if "lr" in part.inputs and not has_rate:
            message = f"{part.name} needs a learning rate called `lr`"
            raise CompositionError(f"{message}, which {base.name} does not have")
        asking = [each.name for each in (base, *modifiers) if each.asked_fresh]
        if part.guard and asking:
            message = f"{part.name} may skip the first step, and {asking[0]} asks `fresh` for it"
            raise CompositionError(f"{message}: leave one out")


def _check_rounding(base: Part, modifiers: Sequence[Part]) -> None:
    """Refuse to change the update of a rule that has rounded its parameter already."""
    names = (n for stmt in base.body for n in ast.walk(stmt) if isinstance(n, ast.Name))
    rounds = any(name.id in STORAGE_OPS for name in names)
    changing = [part.name for part in modifiers if part.changes in ("update", "store")]
    if rounds and changing:
        message = f"{changing[0]} changes the update, and {base.name} rounds the parameter itself"
        raise CompositionError(f"{message}: leave one out")


def _check_group_states(base: Part, modifiers: Sequence[Part]) -> None:
    """Refuse to let a parameter wait where the rule changes what all parameters share."""
    waiting = [part.name for part in modifiers if part.stage == WRAPPING]
    later = (base, *(part for part in modifiers if part.changes != "gradient"))
    shared = [(part.name, name) for part in later for name in sorted(part.group_states)]
    if waiting and shared:
        other, name = shared[0]
        message = f"{waiting[0]} decides for each parameter when the rest of a step runs"
        message += f", and {other} keeps `{name}` for all parameters of a group: leave one out"
        raise CompositionError(f"{message}; `.grad` adds up over several calls of `backward`")


def _check_moment(base: Part, part: Part) -> None:
    """Check that an optimizer has one second moment, and reads it after it has assigned it."""
    moments = base.with_role(part.stage)
    if len(moments) != 1:
        count = "declares several" if moments else "does not declare"
        message = f"{part.name} needs one state with the role {part.stage!r}"
        raise CompositionError(f"{message}, and {base.name} {count}")
    after = rest_after(base.body, moments[0])
    if after is None or not any(reads(stmt, moments[0]) for stmt in after):
        message = f"{part.name} changes `{moments[0]}` between its assignment and its use"
        why = "has no statement for it outside of branches, or does not read it afterwards"
        raise CompositionError(f"{message}: {base.name} {why}")
