"""Read programs: functions below an optimizer, decorated with its name and a mode."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from optgen.ir.algorithm import Algorithm, Hyper, Mode, ModeProgram, State
from optgen.ir.nodes import Assign, Call, Ref, expressions, walk
from optgen.ir.reserved_in_python import free_name
from optgen.spec.errors import did_you_mean
from optgen.spec.read_algorithm import WHOLE_TENSOR_OPS, list_roles, read_rule
from optgen.spec.reserved_names import is_snake_case
from optgen.spec.scope import Scope
from optgen.spec.source import Source, names_stored

MODES: tuple[Mode, ...] = get_args(Mode)
MODE_KEY = "train_mode"
"""The key of the mode in a param group."""


def is_program(node: ast.FunctionDef, specs: Container[str]) -> bool:
    """Tell whether a function is decorated with a mode, or with an attribute of a spec."""
    match _attribute(node.decorator_list[0]):
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return attribute in MODES or name in specs
    return False


def names_read_by(programs: Iterable[ast.FunctionDef], optimizer: str) -> set[str]:
    """Return the states and hyperparameters of an optimizer that its programs take."""
    return {
        argument.arg
        for node in programs
        for argument in (*node.args.posonlyargs, *node.args.kwonlyargs)
        if ast.unparse(node.decorator_list[0]).partition(".")[0] == optimizer
    }


def _attribute(decorator: ast.expr) -> ast.expr:
    """Return a decorator without its arguments: `f` for both `@f(x)` and `@f`."""
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def with_programs(
    source: Source,
    algorithms: Sequence[Algorithm],
    nodes: Iterable[ast.FunctionDef],
    constants: Mapping[str, Any],
    helpers: Mapping[str, ast.FunctionDef],
) -> tuple[Algorithm, ...]:
    """Return the algorithms of a file, each with its programs.

    Raises:
        SpecError: the first mistake in a program; or an optimizer has a program for one mode only.
    """
    programs: dict[str, dict[Mode, ModeProgram]] = {a.name: {} for a in algorithms}
    for node in nodes:
        optimizer, mode = _optimizer_and_mode(source, node, algorithms)
        if mode in programs[optimizer.name]:
            other = programs[optimizer.name][mode].function
            message = f"`{optimizer.name}` has two programs for {mode}"
            source.error(node, message, f"the other one is `{other.name}`, at {other.place}")
        function = _Reader(source, node, optimizer, mode).read(constants, helpers)
        programs[optimizer.name][mode] = ModeProgram(mode, function)
    return tuple(_with_checked_programs(source, a, programs[a.name]) for a in algorithms)


def _with_checked_programs(
    source: Source, optimizer: Algorithm, programs: Mapping[Mode, ModeProgram]
) -> Algorithm:
    """Return an optimizer with its programs, after checking that it has both or none."""
    if len(programs) == 1:
        (program,) = programs.values()
        (mode,) = set(MODES) - {program.mode}
        message = f"`{optimizer.name}` has a program for {program.mode}, but none for {mode}"
        hint = f"@{optimizer.name}.{mode}: it undoes `{program.function.name}`"
        source.error_at(program.function.place, message, hint)
    group_keys = {hyper.name: hyper.place for hyper in optimizer.hypers}
    group_keys |= {state.key: state.place for state in optimizer.group_states()}
    if programs and MODE_KEY in group_keys:
        message = f"`{MODE_KEY}` is the key of the mode in the param groups"
        source.error_at(group_keys[MODE_KEY], message, "choose another name")
    return replace(optimizer, programs=tuple(programs[mode] for mode in MODES if mode in programs))


def _optimizer_and_mode(
    source: Source, node: ast.FunctionDef, algorithms: Sequence[Algorithm]
) -> tuple[Algorithm, Mode]:
    """Return the optimizer and the mode that a program's decorator names."""
    first, *other_decorators = node.decorator_list
    attribute = _attribute(first)
    assert isinstance(attribute, ast.Attribute)
    assert isinstance(attribute.value, ast.Name)
    name = attribute.value.id
    optimizers = {a.name: a for a in algorithms if not a.is_function}
    if name not in optimizers:
        message = f"no optimizer of this file is called `{name}`"
        if name in {a.name for a in algorithms}:
            message = f"`{name}` is a function over lists, so it has no programs"
        hint = did_you_mean(name, optimizers, "only an optimizer has programs, in the same file")
        source.error(first, message, hint)
    example = f"@{name}.train or @{name}.eval"
    if attribute.attr not in MODES:
        source.error(first, f"an optimizer has no program `{attribute.attr}`", example)
    if isinstance(first, ast.Call):
        source.error(first, f"`@{name}.{attribute.attr}` takes no options", "write no brackets")
    if other_decorators:
        source.error(
            other_decorators[0], "a second decorator beside that of a program", "leave it out"
        )
    optimizer = optimizers[name]
    if optimizer.base is not None:
        message = f"`{name}` derives from `{optimizer.base}`, so it has no program of its own"
        source.error(first, message, f"it has those of `{optimizer.base}`")
    if source.place(node).line < optimizer.place.line:
        source.error(first, f"`{name}` is defined further down", "write programs below it")
    return optimizer, MODES[MODES.index(attribute.attr)]


class _Reader:
    """Reader of one program of an optimizer."""

    def __init__(
        self, source: Source, node: ast.FunctionDef, optimizer: Algorithm, mode: Mode
    ) -> None:
        self.source = source
        self.node = node
        self.optimizer = optimizer
        self.mode = mode

    def read(
        self, constants: Mapping[str, Any], helpers: Mapping[str, ast.FunctionDef]
    ) -> Algorithm:
        """Return the program as a function over lists, after all checks.

        A function over lists needs a list that it only reads. If the program writes all of its
        lists, a copy of the first list is added as one that it only reads.
        """
        if not is_snake_case(self.node.name):
            message = f"`{self.node.name}` is a function, so its name must be in snake_case"
            hint = "its folder and its kernels get this name: to_average"
            self.source.error(self.node, message, hint)
        self._check_signature()
        lists = tuple(map(self._list_name, self.node.args.posonlyargs))
        hypers = tuple(map(self._hyper, self.node.args.kwonlyargs))
        self._check_body()
        declared, copy_names = self._without_rule(lists, hypers)
        function, scope = read_rule(self.source, declared, self.node, constants, helpers)
        self._check_rule(function, scope)
        assignments_from_copy = (Assign(Ref(declared.param), Ref(name)) for name in copy_names)
        return replace(function, rule=(*assignments_from_copy, *function.rule))

    def _without_rule(
        self, lists: tuple[str, ...], hypers: tuple[Hyper, ...]
    ) -> tuple[Algorithm, tuple[str, ...]]:
        """Return the function without its rule, and the name of the added copy: () if none."""
        if set(lists) <= names_stored([self.node]):
            param, grad = lists[0], free_name(f"{lists[0]}_before", self.optimizer.stored)
            others = dict.fromkeys(lists[1:], True)
            copy_names: tuple[str, ...] = (grad,)
        else:
            param, grad, others = list_roles(self.source, self.node, lists)
            copy_names = ()
        function = Algorithm(
            name=self.node.name,
            module=self.optimizer.module,
            doc=ast.get_docstring(self.node)
            or f"Update parameters as `{self.optimizer.name}.{self.mode}` does.",
            paper="",
            states=tuple(self._state(name, is_written) for name, is_written in others.items()),
            hypers=hypers,
            rule=(),
            param=param,
            grad=grad,
            step=None,
            lists=(*lists, *copy_names),
            source=self.source.padded_text,
            place=self.source.place(self.node),
        )
        return function, copy_names

    def _check_signature(self) -> None:
        """Check that the signature holds only lists before `/` and hyperparameters after `*`."""
        arguments, error = self.node.args, self.source.error
        example = f"def {self.node.name}({self.optimizer.param}, …, /, *, …):"
        for argument in arguments.args:
            message = f"`{argument.arg}` stands between `/` and `*`, but a program declares nothing"
            hint = f"write states before `/`, hyperparameters after `*`: {example}"
            error(argument, message, hint)
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                error(extra, "a program has no *args and no **kwargs", example)
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                message = f"a program shares what `{self.optimizer.name}` declares"
                error(default, message, "write the name alone")
        if len(arguments.posonlyargs) < 2:
            message = f"a program takes `{self.optimizer.param}` and states before `/`"
            error(self.node, message, example)

    def _list_name(self, argument: ast.arg) -> str:
        """Return the name of a list: of the parameter, or of a state of the parameter's shape."""
        name, optimizer = argument.arg, self.optimizer
        if name in (optimizer.grad, optimizer.step):
            input_name = "gradient" if name == optimizer.grad else "step count"
            message = f"`{name}` is the {input_name}, but a program runs between steps"
            self.source.error(argument, message, "a program reads the parameter and states")
        state = optimizer.state(name)
        if state is not None and state.step_argument:
            message = f"`{name}` is handed to a step, but a program runs between steps"
            self.source.error(argument, message, "a program reads the parameter and states")
        if state is None and name != optimizer.param:
            states = (s.symbol for s in optimizer.checkpoint_states() if s.shape == "like")
            known = [optimizer.param, *states]
            hint = did_you_mean(name, known, f"it has {', '.join(known)}")
            self.source.error(argument, f"`{optimizer.name}` has no state `{name}`", hint)
        if state is not None and state.shape != "like":
            message = f"`{name}` has another shape than the parameter"
            self.source.error(argument, message, "a program works element by element")
        if state is not None and state.is_quantized:
            hint = f'leave dtype="{state.dtype}" of `{name}` out: a program runs on numbers'
            self.source.error(argument, f"`{name}` is a state of {state.width}", hint)
        return name

    def _hyper(self, argument: ast.arg) -> Hyper:
        """Return a hyperparameter as a function takes it: a number, or a tensor of one element."""
        name, optimizer = argument.arg, self.optimizer
        hyper = optimizer.hyper(name)
        if hyper is None or hyper.set_by_step:
            known = [h.name for h in optimizer.hypers if not h.set_by_step]
            hint = did_you_mean(name, known, f"it has {', '.join(known) or 'none'}")
            message = f"`{optimizer.name}` has no hyperparameter `{name}`"
            self.source.error(argument, message, hint)
        tensor = "never" if hyper.tensor == "never" else "number"
        place = self.source.place(argument)
        return replace(hyper, tensor=tensor, fixed=False, rows=True, place=place)

    def _state(self, symbol: str, is_written: bool) -> State:
        state = self.optimizer.state(symbol)
        if state is None:
            return State(symbol, symbol, written=is_written)
        return State(symbol, state.key, dtype=state.dtype, written=is_written)

    def _check_body(self) -> None:
        """Refuse words that are about a step or a constructor, or that need a whole parameter."""
        for statement in self.node.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                    self.source.error(node, *_whole_parameter_error("@"))
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                    continue
                if node.func.id in WHOLE_TENSOR_OPS:
                    self.source.error(node, *_whole_parameter_error(node.func.id))
                if node.func.id == "fresh":
                    message = "`fresh` asks about a step, but a program runs between steps"
                    hint = "a program leaves parameters alone that have no state yet"
                    self.source.error(node, message, hint)
                if node.func.id == "require":
                    message = "the constructor checks `require`, and a program has no constructor"
                    self.source.error(node, message, f"write it in `{self.optimizer.name}`")

    def _check_rule(self, function: Algorithm, scope: Scope) -> None:
        """Check that every list is used, and that helpers work element by element too."""
        for argument in self.node.args.posonlyargs:
            if argument.arg not in scope.read | scope.written:
                self.source.error(argument, f"`{argument.arg}` is never used", "leave it out")
        for expr in expressions(function.rule):
            for node in walk(expr):
                if isinstance(node, Call) and node.op in WHOLE_TENSOR_OPS:
                    self.source.error_at(node.place, *_whole_parameter_error(node.op))


def _whole_parameter_error(op: str) -> tuple[str, str]:
    """Return the message and the hint for an op that needs a whole parameter."""
    message = f"`{op}` needs a whole parameter, but a program works element by element"
    return message, "compute it in a step, and keep it in a state"
