"""Refuse modifiers with mistakes of their own, and parts that do not go together."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from optgen.ir.ops import STORAGE_OPS
from optgen.spec.composition.find_parts import (
    ASSIGNED_INPUT,
    CHANGE_OF_OPTION,
    INPUTS,
    STAGES,
    WRAPPING_STAGE,
    Part,
    declared_key,
    free_names,
    option,
    reads,
    rest_after,
    unchecked_modifier,
)
from optgen.spec.declare import Spec
from optgen.spec.source import is_call_of, module_name, nodes_of


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
        if not is_call_of(declared, "state"):
            hint = f'{argument.arg}=state("checkpoint_key")'
            part.source.error(argument, f"`{argument.arg}` is no state", hint)
    for argument, default in part.hypers:
        if not is_call_of(default, "hyper", "flag", "choice", "fixed"):
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
    option_names = part.state_names | part.assigned_names
    for each in ("weights", "step", "guard"):
        name = getattr(part, each)
        if name and name not in option_names:
            hint = f"{each}= names a state or a variable of the modifier"
            _refuse(part, f"`{part.name}` has no `{name}`", hint)


def _check_stage(part: Part) -> None:
    """Check that the modifier assigns the input that its stage changes, and no other input."""
    stage, result = f"a modifier of stage {part.stage!r}", ASSIGNED_INPUT[part.changed_value]
    for each, changed_value in CHANGE_OF_OPTION.items():
        if getattr(part, each) and part.changed_value != changed_value:
            stages = " ".join(
                repr(name) for name, change in STAGES.items() if change == changed_value
            )
            _refuse(part, f"{stage} has no {each}=", f"stages that have it: {stages}")
    if part.follows and part.weights not in part.state_names:
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


class CompositionError(ValueError):
    """Error for parts that do not go together. Its message says which, why, and what to do."""


def check_fit(base: Part, modifiers: Sequence[Part]) -> None:
    """Check that an optimizer and modifiers, in the order of their stages, go together.

    Raises:
        CompositionError: two parts declare one name or one checkpoint key, two modifiers store the
            parameter, or a part lacks what another one needs.
    """
    names = [part.name for part in modifiers]
    for name in names:
        if names.count(name) > 1:
            raise CompositionError(f"{name} is listed twice: leave one out")
    _check_declared(base, modifiers)
    _check_needs(base, modifiers)


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
    if option(base.node.decorator_list[0], "gradient") == "sparse_only":
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
    rounds_param = any(name.id in STORAGE_OPS for name in nodes_of(base.body, ast.Name))
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
        if name in dependent and option(declared, "dtype") == "torch":
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
    return {name.id for name in nodes_of(nodes, ast.Name)}
