"""Check the parts of a modifier that an optimizer lacks: inputs, stage, and assigned inputs."""

from __future__ import annotations

import ast
from typing import NoReturn

from optgen.spec.composition.parts import (
    ASSIGNED_INPUT,
    CHANGE_OF_OPTION,
    INPUTS,
    STAGES,
    WRAPPING_STAGE,
    Part,
    declares,
    unchecked_modifier,
)
from optgen.spec.composition.renaming import free_names
from optgen.spec.declare import Spec
from optgen.spec.files import module_name


def modifier_part(spec: Spec) -> Part:
    """Return the modifier of a spec, after all checks.

    Raises:
        SpecError: the text holds no modifier; or its stage, an input or an assignment is wrong.
    """
    part = unchecked_modifier(spec)
    _check_signature(part)
    _check_names(part)
    _check_stage(part)
    return part


def _check_signature(part: Part) -> None:
    """Check the form of a modifier's signature, and that it has one decorator."""
    arguments, example = part.node.args, "def clip(g, /, *, limit=hyper(1.0)):"
    if len(part.node.decorator_list) > 1:
        message = "a second decorator beside that of a modifier"
        part.source.error(part.node.decorator_list[1], message, "leave it out")
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            part.source.error(extra, "a modifier has no *args and no **options", example)
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = positional[: len(positional) - len(arguments.defaults)]
    for argument in arguments.args:
        if argument in without_default:
            message = f"`{argument.arg}` is an input, so it stands before a `/`"
            part.source.error(argument, message, example)
    for argument in arguments.posonlyargs:
        if argument not in without_default:
            message = f"`{argument.arg}` is an input, so it has no default"
            part.source.error(argument, message, example)
    for argument, declared in part.states:
        if not declares(declared, "state"):
            hint = f'{argument.arg}=state("checkpoint_key")'
            part.source.error(argument, f"`{argument.arg}` is no state", hint)
    for argument, default in part.hypers:
        if not declares(default, "hyper", "flag", "choice", "fixed"):
            hint = f"{argument.arg}=hyper(1.0)"
            part.source.error(argument, f"`{argument.arg}` is no hyperparameter", hint)


def _check_names(part: Part) -> None:
    """Check that a docstring exists, and that all names in the modifier are valid and known."""
    allowed = INPUTS[part.changed_value]
    for argument in part.node.args.posonlyargs:
        if argument.arg not in allowed:
            hint = f"a modifier of stage {part.stage!r} takes {', '.join(allowed)}, by these names"
            part.source.error(argument, f"`{argument.arg}` is no input of this modifier", hint)
    if not part.doc:
        _refuse(part, f"`{part.name}` has no docstring", "describe it in one line")
    if part.name != module_name(part.name):
        _refuse(part, "a modifier's name must be in snake_case", f"def {module_name(part.name)}(…)")
    for name, node in free_names(part).items():
        hint = "a modifier reads its inputs, states, hyperparameters and variables"
        part.source.error(node, f"`{name}` is no name of this modifier", hint)
    option_names = {argument.arg for argument, _ in part.states} | part.assigned_names
    for option in ("weights", "step", "guard"):
        name = getattr(part, option)
        if name and name not in option_names:
            hint = f"{option}= names a state or a variable of the modifier"
            _refuse(part, f"`{part.name}` has no `{name}`", hint)


def _check_stage(part: Part) -> None:
    """Check that the modifier assigns the input that its stage changes, and no other input."""
    stage, result = f"a modifier of stage {part.stage!r}", ASSIGNED_INPUT[part.changed_value]
    for option, changed_value in CHANGE_OF_OPTION.items():
        if getattr(part, option) and part.changed_value != changed_value:
            stages = " ".join(
                repr(name) for name, change in STAGES.items() if change == changed_value
            )
            _refuse(part, f"{stage} has no {option}=", f"stages that have it: {stages}")
    if part.follows and part.weights not in {argument.arg for argument, _ in part.states}:
        hint = 'weights="x" names a state, which follows the parameter'
        _refuse(part, f"`{part.name}` has follows= without weights", hint)
    if part.guard and part.stage == WRAPPING_STAGE:
        _refuse(part, f"{stage} has no guard=", "its `if` is the condition")
    if result and result not in part.assigned_names and not part.guard:
        _refuse(part, f"{stage} changes `{result}`", f"assign it: {result} = …")
    for name in sorted(set(part.inputs) & part.assigned_names - {result}):
        hint = f"{stage} changes {f'`{result}`' if result else 'states'}"
        _refuse(part, f"this modifier may not change `{name}`", hint)
    if part.stage == WRAPPING_STAGE:
        last = part.body[-1] if part.body else None
        if not isinstance(last, ast.If) or last.orelse:
            message = f"{stage} ends in an `if` without an `else`"
            _refuse(part, message, "if t % every == 0:")


def _refuse(part: Part, message: str, hint: str) -> NoReturn:
    part.source.error(part.node, message, hint)
