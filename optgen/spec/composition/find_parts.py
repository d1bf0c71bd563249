"""Find the parts of a composition in their files: the function of an optimizer or modifier."""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optgen.ir.ops import CALLABLE_OPS
from optgen.spec.declare import Spec
from optgen.spec.literals import BOOLEAN, TEXT, literal, one_of, options
from optgen.spec.read_spec import check_statements
from optgen.spec.reserved_names import DECLARATIONS
from optgen.spec.source import (
    Source,
    calls_of,
    is_call_of,
    names_stored,
    nodes_of,
    read_file,
)

STAGES = {
    "skip": "gradient",
    "accumulate": "gradient",
    "centralize": "gradient",
    "noise": "gradient",
    "clip_elements": "gradient",
    "clip_tensors": "gradient",
    "clip_all": "gradient",
    "coupled_decay": "gradient",
    "second_moment": "moment",
    "mask": "update",
    "trust_ratio": "update",
    "decay": "update",
    "project": "update",
    "average_steps": "update",
    "store": "store",
    "observe": "observe",
}
"""The stages of a step in their order, each with what its modifiers change.

Modifiers of the gradient run before the rule, and those of the update after it. Those of a moment
run inside the rule, after it has assigned the state with that role. At most one modifier stores the
parameter. Modifiers that observe read the stored parameter.
"""

INPUTS = {
    "gradient": ("p", "g", "t", "lr"),
    "moment": ("v", "t"),
    "update": ("p", "g", "u", "t", "lr"),
    "store": ("p", "g", "u", "t", "lr"),
    "observe": ("p", "t", "lr"),
}
"""The names that a modifier may take before `/`, by what its stage changes.

They are the parameter `p`, the gradient `g` as the rule reads it, the second moment `v`, the update
`u` that will be added to the parameter, the step count `t`, and the learning rate `lr`.
"""

ASSIGNED_INPUT = {"gradient": "g", "moment": "v", "update": "u", "store": "p", "observe": ""}
"""The input that a modifier may assign, by what its stage changes; "" for none."""

CHANGE_OF_OPTION = {
    "weights": "store",
    "follows": "store",
    "step": "gradient",
    "guard": "gradient",
}
"""Options that a modifier may have only if its stage changes the value in this table."""

WRAPPING_STAGE = "accumulate"
"""The stage whose modifiers end in an `if`, around the rest of the step."""

_OPTIONS = {
    "stage": one_of(*STAGES),
    **dict.fromkeys(("weights", "step", "guard"), TEXT),
    "follows": BOOLEAN,
    "zero_grad": BOOLEAN,
}


@dataclass(frozen=True)
class Part:
    """One function of a composition, with the constants and helpers of its file.

    A modifier has a stage. `weights`, `step` and `guard` name states or variables of the modifier.

    * `weights`: the rule and the modifiers of the update read and move this state instead of the
      parameter.
    * `follows`: an element of `weights` that no longer rounds to the parameter becomes the
      parameter's: somebody has changed the parameter since the last step.
    * `step`: all later parts read this name instead of the step count.
    * `guard`: unless this variable is true, the parameter and all states keep their values.
    * `zero_grad`: whether the step leaves the gradients at zero.
    """

    source: Source
    node: ast.FunctionDef
    definitions: tuple[ast.stmt, ...]
    programs: tuple[ast.FunctionDef, ...] = ()
    stage: str = ""
    weights: str = ""
    step: str = ""
    guard: str = ""
    follows: bool = False
    zero_grad: bool = False

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.node.name

    @property
    def changed_value(self) -> str:
        """The kind of value that a modifier changes: a value of `STAGES`."""
        return STAGES[self.stage]

    @property
    def inputs(self) -> list[str]:
        """The names before `/`, without extra inputs."""
        arguments = self.node.args
        extra_inputs = max(0, len(arguments.defaults) - len(arguments.args))  # they have defaults
        inputs = arguments.posonlyargs[: len(arguments.posonlyargs) - extra_inputs]
        return [argument.arg for argument in inputs]

    @property
    def states(self) -> list[tuple[ast.arg, ast.expr]]:
        """The states with their declarations."""
        arguments = self.node.args.args
        defaults = self.node.args.defaults
        return list(zip(arguments, defaults[len(defaults) - len(arguments) :], strict=True))

    @property
    def state_names(self) -> set[str]:
        """The names of the states."""
        return {argument.arg for argument, _ in self.states}

    @property
    def group_states(self) -> dict[str, str]:
        """The names of the states that groups keep, each with its shape: "group" or "all"."""
        shapes = {argument.arg: option(declared, "shape") for argument, declared in self.states}
        return {name: shape for name, shape in shapes.items() if shape in ("group", "all")}

    def with_role(self, role: str) -> list[str]:
        """Return the names of the states with a role."""
        return [a.arg for a, declared in self.states if option(declared, "role") == role]

    @property
    def fresh_states(self) -> dict[str, None]:
        """The states that the rule calls `fresh` on."""
        calls = [call for call in calls_of(self.body, "fresh") if len(call.args) == 1]
        return {call.args[0].id: None for call in calls if isinstance(call.args[0], ast.Name)}

    def existence_condition(self, state: str) -> str:
        """Return the condition under which a state exists, as text; "" if there is none."""
        conditions = {argument.arg: option(declared, "when") for argument, declared in self.states}
        return str(conditions.get(state) or "")

    @property
    def hypers(self) -> list[tuple[ast.arg, ast.expr | None]]:
        """The hyperparameters with their declarations."""
        return list(zip(self.node.args.kwonlyargs, self.node.args.kw_defaults, strict=True))

    @property
    def requirements(self) -> list[ast.stmt]:
        """The calls of `require` at the beginning of the rule."""
        return [stmt for stmt in self._statements if is_call_of(_value(stmt), "require")]

    @property
    def body(self) -> list[ast.stmt]:
        """The statements of the rule."""
        return [stmt for stmt in self._statements if not is_call_of(_value(stmt), "require")]

    @property
    def _statements(self) -> list[ast.stmt]:
        return self.node.body[1:] if ast.get_docstring(self.node) else self.node.body

    @property
    def doc(self) -> str:
        """The docstring."""
        return ast.get_docstring(self.node) or ""

    @property
    def assigned_names(self) -> set[str]:
        """The names that the rule assigns."""
        return names_stored(self.body)

    def copy(self) -> Part:
        """Return a part with a syntax tree of its own."""
        return replace(
            self,
            node=copy.deepcopy(self.node),
            definitions=copy.deepcopy(self.definitions),
            programs=copy.deepcopy(self.programs),
        )


def is_modifier(path: Path) -> bool:
    """Tell whether a file holds a modifier, even one with mistakes."""
    try:
        tree = ast.parse(read_file(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return any("modifier" in map(_name, node.decorator_list) for node in functions)


def optimizer_part(spec: Spec) -> Part:
    """Return the optimizer of a spec that has been read without an error."""
    return _part(spec, "optimizer")


def unchecked_modifier(spec: Spec) -> Part:
    """Return the modifier of a spec. Only the options of its decorator have been checked.

    Raises:
        SpecError: the text holds no modifier, or an option of the decorator is wrong.
    """
    part = _part(spec, "modifier")
    decorator = part.node.decorator_list[0]
    values = {}
    if isinstance(decorator, ast.Call):
        constants = dict(_constants(part))
        values = options(decorator.keywords, _OPTIONS, part.source, constants)
    if "stage" not in values:
        hint = f"@modifier(stage={next(iter(STAGES))!r}); stages: {', '.join(STAGES)}"
        part.source.error(decorator, "a modifier names its stage", hint)
    return replace(part, **values)


def option(declaration: ast.expr | None, name: str) -> Any:
    """Return the value of an option of a declaration or decorator; None if it is left out.

    A constant of the file is returned as its name.
    """
    for keyword in declaration.keywords if isinstance(declaration, ast.Call) else ():
        if keyword.arg == name:
            with contextlib.suppress(ValueError):
                return ast.literal_eval(keyword.value)
            return ast.unparse(keyword.value)
    return None


def declared_key(declaration: ast.expr) -> str:
    """Return the checkpoint key in the declaration of a state."""
    match declaration:
        case ast.Call(args=[ast.Constant(value=str() as key), *_]):
            return key
    return ""


def _part(spec: Spec, decorator: str) -> Part:
    """Return the one function of a spec that has this decorator, with definitions and programs."""
    source = Source(spec.source, spec.file, spec.line, is_excerpt=True)
    tree = source.parse()
    check_statements(source, tree)
    source.check_depth(tree)
    source.check_strings(tree)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    decorated = [node for node in functions if decorator in map(_name, node.decorator_list)]
    if len(decorated) != 1:
        number = "no" if not decorated else "more than one"
        source.error(tree, f"{number} @{decorator} in `{spec.name}`", "one file, one function")
    node = decorated[0]
    programs = [f for f in functions if node.name in map(_owner, f.decorator_list)]
    for other in functions if decorator == "modifier" else ():
        if other.decorator_list and other not in (node, *programs):
            message = f"`{other.name}` stands beside the modifier `{node.name}`"
            source.error(other.decorator_list[0], message, "put it into a file of its own")
    definitions = [
        each
        for each in tree.body
        if isinstance(each, ast.Assign)
        or (isinstance(each, ast.FunctionDef) and not each.decorator_list)
    ]
    return Part(source, node, tuple(definitions), tuple(programs))


def _constants(part: Part) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each constant of a part."""
    constants: dict[str, object] = {}
    for node in part.definitions:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                constants[name] = literal(value, part.source, constants)
                yield name, constants[name]


def _value(stmt: ast.stmt) -> ast.expr | None:
    """Return the value of a statement that is an expression; None for any other."""
    return stmt.value if isinstance(stmt, ast.Expr) else None


def _name(decorator: ast.expr) -> str:
    """Return the name of a decorator, called or not."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return function.id if isinstance(function, ast.Name) else ""


def _owner(decorator: ast.expr) -> str:
    """Return the optimizer that a program's decorator names."""
    match decorator:
        case ast.Attribute(value=ast.Name(id=name)):
            return name
    return ""


def rest_after(body: Sequence[ast.stmt], name: str) -> list[ast.stmt] | None:
    """Return the statements after the last assignment of a state.

    Return None if that assignment stands in a branch, or if there is none.
    """
    positions = [position for position, stmt in enumerate(body) if name in names_stored([stmt])]
    if not positions or not isinstance(body[positions[-1]], ast.Assign):
        return None
    return list(body[positions[-1] + 1 :])


def reads(stmt: ast.stmt, name: str) -> bool:
    """Tell whether a statement reads a name."""
    nodes = nodes_of([stmt], ast.Name)
    return any(node.id == name and not isinstance(node.ctx, ast.Store) for node in nodes)


def bound_names(function: ast.FunctionDef) -> set[str]:
    """Return the names of a function's arguments and variables."""
    return {node.arg for node in nodes_of([function], ast.arg)} | names_stored([function])


def own_names(part: Part) -> set[str]:
    """Return the names that a part defines: states, variables, constants, helpers and programs."""
    names = part.state_names
    for node in part.definitions:
        match node:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    for program in part.programs:
        arguments = {node.arg for node in nodes_of([program], ast.arg)}
        names |= {program.name, *(names_stored([program]) - arguments)}
    return names | part.assigned_names - set(part.inputs)


def free_names(part: Part) -> dict[str, ast.Name]:
    """Return the names that a part reads and does not define, each with one of its nodes."""
    defined = own_names(part) | {*DECLARATIONS, *CALLABLE_OPS}
    free: dict[str, ast.Name] = {}
    helpers = [node for node in part.definitions if isinstance(node, ast.FunctionDef)]
    for function in (part.node, *helpers, *part.programs):
        defined_here = defined | bound_names(function)
        for node in nodes_of(function.body, ast.Name):
            if node.id not in defined_here:
                free.setdefault(node.id, node)
    return free


def all_names(part: Part) -> set[str]:
    """Return every name that occurs in a part."""
    tops = (part.node, *part.definitions, *part.programs)
    names = {node.id for node in nodes_of(tops, ast.Name)}
    names |= {node.arg for node in nodes_of(tops, ast.arg)}
    return names | {node.name for node in nodes_of(tops, ast.FunctionDef)}
