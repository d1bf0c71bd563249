"""Give the parts of a composition names that fit together, and refuse parts that do not."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.ops import CALLABLE_OPS, STORAGE_OPS
from optgen.spec.composition.moments import reads, rest_after
from optgen.spec.composition.parts import STAGES, WRAPPING_STAGE, Part, declared_key
from optgen.spec.composition.renaming import all_names, own_names, renamed, unused_name
from optgen.spec.composition.spell_out_norms import spell_out_norms
from optgen.spec.composition.step_dependence import why_steps_count_on_host
from optgen.spec.reserved_names import DECLARATIONS

_STAGE_ORDER = list(STAGES)


class CompositionError(ValueError):
    """Error for parts that do not go together. Its message says which, why, and what to do."""


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
    _check_listed_once(ordered)
    _check_declared(base, ordered)
    _check_needs(base, ordered)
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


def _check_listed_once(modifiers: Sequence[Part]) -> None:
    names = [part.name for part in modifiers]
    for name in names:
        if names.count(name) > 1:
            raise CompositionError(f"{name} is listed twice: leave one out")


def _check_declared(base: Part, modifiers: Sequence[Part]) -> None:
    declared_by = dict.fromkeys(base.inputs, ("input", base.name))
    for part in (base, *modifiers):
        hypers = [("hyperparameter", argument.arg) for argument, _ in part.hypers]
        keys = [("state", declared_key(declaration)) for _, declaration in part.states]
        for what, name in (*hypers, *keys):
            # The reader has checked the names inside each part.
            if name in declared_by and declared_by[name][1] != part.name:
                other_what, other = declared_by[name]
                message = f"{part.name} adds the {what} `{name}`, "
                message += f"but {other} has a {other_what} `{name}`"
                raise CompositionError(
                    f"{message}: rename one in a spec of yours, or leave one out"
                )
            declared_by[name] = what, part.name


def _check_needs(base: Part, modifiers: Sequence[Part]) -> None:
    """Check that the optimizer has what its modifiers need, and that no two parts conflict."""
    storing = [part.name for part in modifiers if part.changed_value == "store"]
    if len(storing) > 1:
        message = f"{storing[0]} and {storing[1]} both store the parameter: leave one out"
        raise CompositionError(message)
    with_programs = [part.name for part in (base, *modifiers) if part.programs]
    if len(with_programs) > 1:
        message = (
            f"{with_programs[0]} and {with_programs[1]} both move the parameter for evaluation"
        )
        raise CompositionError(f"{message}: leave one out")
    if base.option("gradient") == "sparse_only":
        raise CompositionError(f"{base.name} takes sparse gradients only, and modifiers dense ones")
    for part in modifiers:
        if part.changed_value == "moment":
            _check_moment(base, part)
    _check_rounding(base, modifiers)
    _check_group_states(base, modifiers)
    has_lr = any(argument.arg == "lr" for argument, _ in base.hypers)
    for part in modifiers:
        if "lr" in part.inputs and not has_lr:
            message = f"{part.name} needs a learning rate called `lr`"
            raise CompositionError(f"{message}, which {base.name} does not have")
        calling_fresh = [each.name for each in (base, *modifiers) if each.fresh_states]
        if part.guard and calling_fresh:
            message = (
                f"{part.name} may skip the first step, and {calling_fresh[0]} asks `fresh` for it"
            )
            raise CompositionError(f"{message}: leave one out")
        counts_on_device = part.guard and part.step  # steps that are not skipped
        for other in (base, *modifiers) if counts_on_device else ():
            if other is not part and (reason := why_steps_count_on_host(other)):
                message = f"{part.name} counts steps on the device, and {reason} of {other.name}"
                raise CompositionError(f"{message} follows from the step count: leave one out")


def _check_rounding(base: Part, modifiers: Sequence[Part]) -> None:
    """Refuse modifiers that change the update of a rule which has rounded its parameter already."""
    names = (n for stmt in base.body for n in ast.walk(stmt) if isinstance(n, ast.Name))
    rounds_param = any(name.id in STORAGE_OPS for name in names)
    changing = [part.name for part in modifiers if part.changed_value in ("update", "store")]
    if rounds_param and changing:
        message = f"{changing[0]} changes the update, and {base.name} rounds the parameter itself"
        raise CompositionError(f"{message}: leave one out")


def _check_group_states(base: Part, modifiers: Sequence[Part]) -> None:
    """Refuse to let single parameters wait if a later part has states that a group shares."""
    waiting = [part.name for part in modifiers if part.stage == WRAPPING_STAGE]
    later = (base, *(part for part in modifiers if part.changed_value != "gradient"))
    shared = [(part.name, *state) for part in later for state in sorted(part.group_states.items())]
    if waiting and shared:
        other, name, shape = shared[0]
        sharing = (
            "all parameters of a group" if shape == "group" else "the parameters of all groups"
        )
        message = f"{waiting[0]} decides for each parameter when the rest of a step runs"
        message += f", and {other} keeps `{name}` for {sharing}: leave one out"
        raise CompositionError(f"{message}; `.grad` adds up over several calls of `backward`")


def _check_moment(base: Part, part: Part) -> None:
    """Check that an optimizer has one second moment, and reads it after it has assigned it."""
    moments = base.with_role(part.stage)
    if len(moments) != 1:
        problem = "declares several" if moments else "does not declare"
        message = f"{part.name} needs one state with the role {part.stage!r}"
        raise CompositionError(f"{message}, and {base.name} {problem}")
    rest = rest_after(base.body, moments[0])
    if rest is None or not any(reads(stmt, moments[0]) for stmt in rest):
        message = f"{part.name} changes `{moments[0]}` between its assignment and its use"
        reason = "has no statement for it outside of branches, or does not read it afterwards"
        raise CompositionError(f"{message}: {base.name} {reason}")
