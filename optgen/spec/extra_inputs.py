"""Read extra inputs: tensors that `step` is handed, declared before `/` as `h=given("hessian")`.

In the IR, an extra input is a state that the rule only reads, and that lives for one step. If the
rule calls `given(h)`, the state exists only if a flag is true. Each step sets the flag for each
parameter.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable, Mapping
from typing import Any

from optgen.ir.algorithm import Algorithm, Hyper, State
from optgen.spec.literals import literal
from optgen.spec.reserved_names import why_taken_verbatim
from optgen.spec.source import Source

GIVEN = "given"
_ARGUMENTS_OF_STEP = ("self", "closure", "grads")
"""Arguments that `step` of every optimizer has."""


def is_given_call(node: ast.expr | None) -> bool:
    """Tell whether a node is a call of `given`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == GIVEN


def extra_inputs(
    source: Source,
    node: ast.FunctionDef,
    defaults: Mapping[str, ast.expr],
    constants: Mapping[str, Any],
) -> tuple[tuple[State, ...], tuple[Hyper, ...]]:
    """Return the extra inputs as states, and a flag for each one that the rule calls `given` on."""
    names = [a.arg for a in node.args.posonlyargs if is_given_call(defaults.get(a.arg))]
    tested_names = _tested_inputs(source, node, names)
    states: list[State] = []
    for name in names:
        declaration = defaults[name]
        assert isinstance(declaration, ast.Call)
        key = _key(source, name, declaration, constants)
        equal_key = next(
            (s.step_argument for s in states if s.step_argument.upper() == key.upper()), None
        )
        if equal_key is not None:
            message = f'two inputs are called "{key}"'
            if equal_key != key:
                message = f'the inputs "{equal_key}" and "{key}" differ in case only'
            source.error(declaration, message, "choose another name")
        when = f"given_{key}" if name in tested_names else None
        place = source.place(declaration)
        states.append(
            State(name, f"{key}_input", when=when, written=False, step_argument=key, place=place)
        )
    flags = [s.when for s in states if s.when]
    return tuple(states), tuple(
        Hyper(f, "flag", False, fixed=True, set_by_step=True) for f in flags
    )


def _tested_inputs(source: Source, node: ast.FunctionDef, names: Iterable[str]) -> set[str]:
    """Return the extra inputs on which the rule calls `given`."""
    tested = set()
    for call in (n for stmt in node.body for n in ast.walk(stmt) if isinstance(n, ast.Call)):
        if not is_given_call(call):
            continue
        match call:
            case ast.Call(args=[ast.Name(id=name)], keywords=[]) if name in names:
                tested.add(name)
            case _:
                hint = ", ".join(names) or f'declare one before `/`: h={GIVEN}("hessian")'
                source.error(call, f"`{GIVEN}` takes an extra input", hint)
    return tested


def _key(source: Source, name: str, node: ast.Call, constants: Mapping[str, Any]) -> str:
    """Return the argument of `step` for an input."""
    example = f'{name}={GIVEN}("hessian"): optimizer.step(hessian=[…])'
    values = [literal(each, source, constants) for each in node.args]
    if node.keywords or len(values) != 1 or not isinstance(values[0], str):
        source.error(node, f"`{GIVEN}` takes the name of an argument of `step`", example)
    key = values[0]
    if not key.isidentifier() or keyword.iskeyword(key) or key in _ARGUMENTS_OF_STEP:
        source.error(node, f'"{key}" cannot be an argument of `step`', example)
    why = why_taken_verbatim(key)
    if why:
        source.error(node, f'"{key}" {why}', "choose another name")
    return key


def check_inputs(source: Source, algorithm: Algorithm, node: ast.FunctionDef) -> None:
    """Check the extra inputs of a rule, after its declarations have been read.

    Raises:
        SpecError: another declaration has a name that an input needs in generated code, the rule
            takes sparse gradients, or a `require` calls `given`.
    """
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    keys = (state.key for state in algorithm.checkpoint_states())
    other_names = {name.upper() for name in (*(a.arg for a in arguments), *keys)}
    for state in algorithm.states:
        generated_names = (state.key, f"given_{state.step_argument}") if state.step_argument else ()
        taken_names = [name for name in generated_names if name.upper() in other_names]
        if taken_names:
            message = f'`{taken_names[0]}` is used for the input "{state.step_argument}"'
            source.error_at(state.place, message, "choose another name")
        if state.step_argument and algorithm.gradient != "dense":
            message = "a rule for sparse gradients has no extra inputs"
            source.error_at(state.place, message, "a sparse gradient holds only some rows")
    _check_requires(source, node)


def _check_requires(source: Source, node: ast.FunctionDef) -> None:
    """Check that no `require` calls `given`."""
    for call in (n for stmt in node.body for n in ast.walk(stmt) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id == "require":
            for inner in ast.walk(call):
                if isinstance(inner, ast.Call) and is_given_call(inner):
                    message = "`require` is about what the constructor knows, not about a step"
                    hint = f"write it in the rule: if {source.quote(inner)}: …"
                    source.error(inner, message, hint)
