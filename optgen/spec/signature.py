"""Read the signature of a spec: inputs before `/`, then states, and hyperparameters after `*`."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from optgen.contract.quantization import BLOCKS, CODE_MAPS, QUANTIZATIONS
from optgen.contract.states import AT_LEAST_FLOAT32, MATRIX_SHAPES, SIDES, Shape
from optgen.ir.algorithm import (
    NARROW_DTYPES,
    Algorithm,
    Bounds,
    Hyper,
    HyperType,
    State,
)
from optgen.spec.literals import (
    BOOLEAN,
    NUMBER,
    TEXT,
    Option,
    is_real,
    literal,
    message_fields,
    one_of,
    options,
)
from optgen.spec.reserved_names import (
    GROUP_OPTIONS,
    TORCH_GROUP_KEYS,
    why_taken,
    why_taken_verbatim,
)
from optgen.spec.scope import condition_of_size
from optgen.spec.source import Source, calls_of, is_call_of

_QUANTIZED_OPTIONS = {
    "block": Option(
        lambda v: type(v) is int and v in BLOCKS, f"one of {', '.join(map(str, BLOCKS))}"
    ),
    "map": one_of(*CODE_MAPS),
    "min_elements": Option(lambda v: type(v) is int and v >= 0, "a whole number of at least 0"),
}
_STATE_OPTIONS = {
    "init": Option(lambda v: isinstance(v, str) or is_real(v), "a number or a name"),
    "shape": one_of("like", "row", "col", "scalar", "group", "all", *MATRIX_SHAPES),
    "dtype": one_of(
        None, AT_LEAST_FLOAT32, "float32", *NARROW_DTYPES, *QUANTIZATIONS, "float64", "torch"
    ),
    **_QUANTIZED_OPTIONS,
    "when": TEXT,
    "role": one_of("second_moment"),
    "eager": BOOLEAN,
    "rows": BOOLEAN,
}
_HYPER_OPTIONS = {
    **dict.fromkeys(("ge", "gt", "le", "lt"), NUMBER),
    "whole": BOOLEAN,
    "optional": BOOLEAN,
    "error": TEXT,
    "about": TEXT,
    "tensor": one_of("never", "always", "capturable", "number"),
    "groups": one_of("any", "equal", "equal or 0"),
    "rows": BOOLEAN,
}
_BOUNDS = ("ge", "gt", "le", "lt", "whole")
_FLAG_OPTIONS = {"about": TEXT, "groups": one_of("any", "equal")}
_CHOICE_OPTIONS = {"error": TEXT, **_FLAG_OPTIONS}


class Signature:
    """Reader of one function's signature."""

    def __init__(self, source: Source, constants: Mapping[str, Any], node: ast.FunctionDef) -> None:
        self.source = source
        self.constants = constants
        self.node = node
        self._check_names()

    def _check_names(self) -> None:
        """Check that the names are allowed and different, and that none is *args or **kwargs."""
        arguments = self.node.args
        names_by_upper_case: dict[str, str] = {}
        for argument in arguments.kwonlyargs:
            why, name = why_taken_verbatim(argument.arg), argument.arg
            other = names_by_upper_case.setdefault(name.upper(), name)
            if other != name:
                why = f"differs from `{other}` in case only"
            if why:
                self.source.error(argument, f"`{name}` {why}", "choose another name")
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.arg in self.constants:
                message = f"`{argument.arg}` is a constant of the file already"
                self.source.error(argument, message, "choose another name")
            why = why_taken(argument.arg)
            if why:
                self.source.error(argument, f"`{argument.arg}` {why}", "choose another name")
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                hint = "write out every state and hyperparameter"
                self.source.error(extra, "a spec has no *args and no **kwargs", hint)

    def inputs(self) -> tuple[str, str, str | None]:
        """Return the names of the parameter, the gradient, and the step count (or None)."""
        defaults = self._defaults()
        names = [
            a.arg for a in self.node.args.posonlyargs if not is_call_of(defaults.get(a.arg), GIVEN)
        ]
        if len(names) not in (2, 3):
            self.source.error(
                self.node,
                "the inputs before `/` are the parameter, the gradient and the step count",
                f"def {self.node.name}(p, g, t, /, …), or (p, g, /, …) if it counts no steps",
            )
        for name, default in defaults.items():
            if name in names:
                kind = "state" if is_call_of(default, "state") else "hyperparameter"
                message = f"`{name}` is an input, so it has no default"
                hint = "move it behind the `/`: states stand between `/` and `*`"
                if kind == "hyperparameter":
                    hint = "move it behind the `*`: hyperparameters stand after it"
                self.source.error(default, message, hint)
        return names[0], names[1], names[2] if len(names) == 3 else None

    def _defaults(self) -> dict[str, ast.expr]:
        """Return the declarations before `*`, by the names that they declare."""
        positional = [*self.node.args.posonlyargs, *self.node.args.args]
        defaults = self.node.args.defaults
        with_default = positional[len(positional) - len(defaults) :]
        return {a.arg: d for a, d in zip(with_default, defaults, strict=True)}

    def states(self) -> tuple[State, ...]:
        """Read the states, which are declared between `/` and `*`."""
        defaults = self._defaults()
        result: list[State] = []
        for argument in self.node.args.args:
            declaration = defaults.get(argument.arg)
            if not is_call_of(declaration, "state"):
                is_hyper = is_call_of(declaration, "hyper", "flag", "choice", "fixed")
                example = f'{argument.arg}=state("checkpoint_key")'
                hint = "write `*` before the hyperparameters" if is_hyper else example
                if is_call_of(declaration, "given"):
                    hint = "an extra input stands before `/`, after the other inputs"
                if declaration is None and argument.arg in ("t", "step", "p", "g", "param", "grad"):
                    inputs = [a.arg for a in self.node.args.posonlyargs] + [argument.arg]
                    hint = f"an input stands before `/`: ({', '.join(inputs)}, /, …)"
                message = f"`{argument.arg}` stands between `/` and `*`, where states are declared"
                self.source.error(argument, message, hint)
            result.append(self._state(argument.arg, declaration))
        return tuple(result)

    def extra_inputs(self) -> tuple[tuple[State, ...], tuple[Hyper, ...]]:
        """Read the extra inputs, which are declared before `/`, after the other inputs."""
        return extra_inputs(self.source, self.node, self._defaults(), self.constants)

    def check_keys(self, states: Iterable[State]) -> None:
        """Check that checkpoint keys differ from each other and from other generated names."""
        owner_of_key = {"param": "the parameter", "grad": "the gradient"}
        hyper_arguments = {a.arg: a for a in self.node.args.kwonlyargs}
        owner_of_key |= dict.fromkeys(hyper_arguments, "a hyperparameter")
        for state in states:
            why = why_taken(state.key)
            if why:
                message = f'checkpoint key "{state.key}" {why}'
                self.source.error_at(state.place, message, "choose another key")
            if state.of_group and state.key in (*TORCH_GROUP_KEYS, *GROUP_OPTIONS):
                message = f'checkpoint key "{state.key}" means something else in a param group'
                self.source.error_at(state.place, message, "choose another key")
            if state.key == "step":
                hint = "it holds the step count: add t to the inputs, as in p, g, t, /"
                self.source.error_at(state.place, 'checkpoint key "step" is reserved', hint)
            if state.key in owner_of_key:
                self.source.error_at(
                    state.place,
                    f'duplicate checkpoint key "{state.key}"',
                    f"{owner_of_key[state.key]} has this key: choose another one",
                )
            if f"fresh_{state.key}" in hyper_arguments:
                message = f"`fresh_{state.key}` is used for the state with the key {state.key}"
                self.source.error(
                    hyper_arguments[f"fresh_{state.key}"], message, "choose another name"
                )
            owner_of_key[state.key] = f"`{state.symbol}`"

    def _state(self, symbol: str, node: Any) -> State:
        args, options = self._arguments(node, _STATE_OPTIONS)
        if len(args) != 1 or not isinstance(args[0], str) or not args[0].isidentifier():
            self.source.error(
                node, "a state needs its checkpoint key", f'{symbol}=state("exp_avg")'
            )
        check_quantized_options(self.source, node, options)
        if (quantization := QUANTIZATIONS.get(options.get("dtype") or "")) is not None:
            options = {"map": quantization.maps[0], "block": quantization.block, **options}
        self._read_size_limit(node, options)
        if (shape := options.get("shape")) in ("group", "all"):
            options |= {"shape": "scalar", "on_device": True, "of_group": True}
            options |= {"of_all": shape == "all"}
        dtype = self._dtype(node, options.pop("dtype", None), options.get("shape") == "scalar")
        return State(symbol, args[0], dtype=dtype, place=self.source.place(node), **options)

    def _read_size_limit(self, node: ast.Call, options: dict[str, Any]) -> None:
        """Replace a condition on a size in `when` by the name of the fact."""
        text, param = options.get("when", ""), self.node.args.posonlyargs[0].arg
        if not any(f"{side}(" in text for side in SIDES):
            return
        hint = f'write when="rows({param}) <= max_dim", with <= or >, and a hyperparameter'
        if (fact := condition_of_size(text, param)) is None:
            message = f'when="{text}" is no limit of rows({param}) or cols({param})'
            self.source.error(node, message, f"{hint} or a whole number")
        if options.get("shape") not in MATRIX_SHAPES:
            message = "a limit of a size is for states that are matrices"
            self.source.error(node, message, 'leave when= out, or say shape=("rows", "rows")')
        options["when"] = fact

    def _dtype(self, node: ast.Call, declared_dtype: str | None, is_scalar: bool) -> str | None:
        """Return the dtype of a state. The default for a scalar state is float64."""
        if declared_dtype in ("float64", "torch") and not is_scalar:
            hint = 'add shape="scalar"; any other state has its parameter\'s dtype, or "float32"'
            self.source.error(node, f'dtype="{declared_dtype}" is for a state of one number', hint)
        if declared_dtype in (AT_LEAST_FLOAT32, *NARROW_DTYPES) and is_scalar:
            hint = 'leave it out: one number is "float64" or "float32"'
            self.source.error(
                node, f'dtype="{declared_dtype}" is for a state of many numbers', hint
            )
        if is_scalar:
            return None if declared_dtype == "torch" else declared_dtype or "float64"
        return declared_dtype

    def hypers(self) -> tuple[Hyper, ...]:
        """Read the hyperparameters, which are declared after `*`."""
        return tuple(
            self._hyper(argument.arg, argument, default)
            for argument, default in zip(
                self.node.args.kwonlyargs, self.node.args.kw_defaults, strict=True
            )
        )

    def _hyper(self, name: str, argument: ast.arg, node: ast.expr | None) -> Hyper:
        match node:
            case ast.Call(func=ast.Name(id="hyper")):
                return self._number(name, node)
            case ast.Call(func=ast.Name(id="flag")):
                return self._flag(name, node, fixed=False)
            case ast.Call(func=ast.Name(id="fixed")):
                return self._flag(name, node, fixed=True)
            case ast.Call(func=ast.Name(id="choice")):
                return self._choice(name, node)
        example = _declaration_of(name, node)
        self.source.error(
            argument,
            f"`{name}` stands after `*`, where hyperparameters are declared",
            "write `*` after the states" if is_call_of(node, "state") else example,
        )

    def _flag(self, name: str, node: ast.Call, *, fixed: bool) -> Hyper:
        args, options = self._arguments(node, {} if fixed else _FLAG_OPTIONS)
        declaration = "fixed" if fixed else "flag"
        place = self.source.place(node)
        if fixed and [*args] == ["narrow"]:
            return Hyper(name, "flag", False, fixed=True, narrow=True, place=place)
        if len(args) != 1 or not isinstance(args[0], bool):
            hint = f"{name}={declaration}(False)"
            allowed = 'True, False or "narrow"' if fixed else "True or False"
            self.source.error(node, f"`{declaration}` takes {allowed}", hint)
        return Hyper(name, "flag", args[0], fixed=fixed, place=place, **options)

    def _choice(self, name: str, node: ast.Call) -> Hyper:
        args, options = self._arguments(node, _CHOICE_OPTIONS)
        if not args or not all(isinstance(a, str | None) for a in args):
            self.source.error(node, "a choice takes strings and None", 'choice("a", None)')
        self._check_error(node, options.get("error", ""), allowed_fields=("",))
        place = self.source.place(node)
        return Hyper(name, "choice", args[0], choices=tuple(args), place=place, **options)

    def _check_error(self, node: ast.Call, error: str, allowed_fields: Collection[str]) -> None:
        """Check that the braces in an error hold nothing but the allowed names; "" allows {}."""
        for field in message_fields(error, node, self.source):
            if field not in allowed_fields:
                self.source.error(node, f"`{{{field}}}` in an error", "write {} for the value")

    def _number(self, name: str, node: ast.Call) -> Hyper:
        args, options = self._arguments(node, _HYPER_OPTIONS)
        if len(args) != 1:
            self.source.error(node, "`hyper` takes its default", f"{name}=hyper(1e-3, ge=0)")
        default = args[0]
        bounds = Bounds(**{k: options.pop(k) for k in _BOUNDS if k in options})
        self._check_default(name, node, default, bounds, bool(options.get("optional")))
        self._check_error(node, options.get("error", ""), allowed_fields=("", "index", "number"))
        type_: HyperType = "tuple" if isinstance(default, tuple) else "number"
        if type_ == "tuple" and options.get("groups") == "equal or 0":
            message = f"`{name}` is a tuple, which no group can replace by 0"
            self.source.error(node, message, 'groups="equal"')
        return Hyper(name, type_, default, bounds, place=self.source.place(node), **options)

    def _check_default(
        self, name: str, node: ast.Call, default: Any, bounds: Bounds, optional: bool
    ) -> None:
        if default == ():
            hint = f"{name}=hyper((0.9, 0.999))"
            self.source.error(node, f"the default of `{name}` is an empty tuple", hint)
        if optional and isinstance(default, tuple) and None not in default:
            hint = f"{name}=hyper((None, 1e-3), optional=True): None where it may be None"
            self.source.error(node.args[0], f"no number in `{name}` is None by default", hint)
        for value in default if isinstance(default, tuple) else (default,):
            if value is None and optional:
                continue
            if not is_real(value):
                hint = "use flag for True or False, choice for strings, optional= for None"
                message = f"the default of `{name}` is not a number: {value!r}"
                self.source.error(node.args[0], message, hint)
            if not bounds.admits(value):
                message = f"the default of `{name}`, {value}, is outside its range"
                self.source.error(node.args[0], message, f"its range: {_range_text(bounds)}")

    def _arguments(
        self, node: ast.Call, allowed: Mapping[str, Option]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values of a declaration's positional arguments and of its keywords."""
        keywords = options(node.keywords, allowed, self.source, self.constants)
        return tuple(literal(a, self.source, self.constants) for a in node.args), keywords


def _range_text(bounds: Bounds) -> str:
    limits = ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt))
    texts = [f"{sign} {limit}" for sign, limit in limits if limit is not None]
    return ", ".join(["whole numbers"] * bounds.whole + texts)


def _declaration_of(name: str, default: ast.expr | None) -> str:
    """Return a declaration with this default, for hints."""
    match default:
        case ast.Constant(value=bool()):
            return f"{name}=flag({ast.unparse(default)})"
        case ast.Constant(value=str()):
            return f"{name}=choice({ast.unparse(default)}, …)"
        case ast.Constant(value=int() | float()) | ast.Tuple():
            return f"{name}=hyper({ast.unparse(default)}, ge=0)"
    return f"{name}=hyper(1e-3, ge=0) or {name}=flag(False)"


GIVEN = "given"
_ARGUMENTS_OF_STEP = ("self", "closure", "grads")
"""Arguments that `step` of every optimizer has."""


def extra_inputs(
    source: Source,
    node: ast.FunctionDef,
    defaults: Mapping[str, ast.expr],
    constants: Mapping[str, Any],
) -> tuple[tuple[State, ...], tuple[Hyper, ...]]:
    """Return the extra inputs as states, and a flag for each one that the rule calls `given` on."""
    names = [a.arg for a in node.args.posonlyargs if is_call_of(defaults.get(a.arg), GIVEN)]
    tested_names = _tested_inputs(source, node, names)
    states: list[State] = []
    for name in names:
        declaration = defaults[name]
        assert isinstance(declaration, ast.Call)
        key, shape = _key_and_shape(source, name, declaration, constants)
        equal_key = next(
            (s.step_argument for s in states if s.step_argument.upper() == key.upper()), None
        )
        if equal_key is not None:
            message = f'two inputs are called "{key}"'
            if equal_key != key:
                message = f'the inputs "{equal_key}" and "{key}" differ in case only'
            source.error(declaration, message, "choose another name")
        when = f"given_{key}" if name in tested_names else None
        is_number = shape == "scalar"
        number: dict[str, Any] = {"dtype": "float64", "on_device": True} if is_number else {}
        state = State(name, f"{key}_input", shape=shape, when=when, written=False, **number)
        states.append(replace(state, step_argument=key, place=source.place(declaration)))
    flags = [s.when for s in states if s.when]
    return tuple(states), tuple(
        Hyper(f, "flag", False, fixed=True, set_by_step=True) for f in flags
    )


def _tested_inputs(source: Source, node: ast.FunctionDef, names: Iterable[str]) -> set[str]:
    """Return the extra inputs on which the rule calls `given`."""
    tested = set()
    for call in calls_of(node.body, GIVEN):
        match call:
            case ast.Call(args=[ast.Name(id=name)], keywords=[]) if name in names:
                tested.add(name)
            case _:
                hint = ", ".join(names) or f'declare one before `/`: h={GIVEN}("hessian")'
                source.error(call, f"`{GIVEN}` takes an extra input", hint)
    return tested


_INPUT_OPTIONS = {"shape": one_of("like", "row", "col", (), *MATRIX_SHAPES)}


def _key_and_shape(
    source: Source, name: str, node: ast.Call, constants: Mapping[str, Any]
) -> tuple[str, Shape]:
    """Return the argument of `step` for an input, and the shape of the input."""
    example = f'{name}={GIVEN}("hessian"): optimizer.step(hessian=[…])'
    values = [literal(each, source, constants) for each in node.args]
    shape = options(node.keywords, _INPUT_OPTIONS, source, constants).get("shape", "like")
    if len(values) != 1 or not isinstance(values[0], str):
        source.error(node, f"`{GIVEN}` takes the name of an argument of `step`", example)
    key = values[0]
    if not key.isidentifier() or keyword.iskeyword(key) or key in _ARGUMENTS_OF_STEP:
        source.error(node, f'"{key}" cannot be an argument of `step`', example)
    why = why_taken_verbatim(key)
    if why:
        source.error(node, f'"{key}" {why}', "choose another name")
    return key, shape or "scalar"


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
    for inner in calls_of(calls_of(node.body, "require"), GIVEN):
        message = "`require` is about what the constructor knows, not about a step"
        hint = f"write it in the rule: if {source.quote(inner)}: …"
        source.error(inner, message, hint)


def check_quantized_options(source: Source, node: ast.Call, options: Mapping[str, Any]) -> None:
    """Check that only a quantized state has such options, and that it has the parameter's shape."""
    quantization = QUANTIZATIONS.get(options.get("dtype") or "")
    given = {each.arg: each.value for each in node.keywords if each.arg in _QUANTIZED_OPTIONS}
    if quantization is None:
        for name, value in given.items():
            hint = f'add dtype="8bit", or remove `{name}`'
            source.error(value, f"`{name}` is for a quantized state", hint)
    elif options.get("shape", "like") != "like":
        message = f'dtype="{options["dtype"]}" is for a state of the parameter\'s shape'
        source.error(
            node,
            message,
            "remove dtype: a state of another shape is small compared with the parameter",
        )
    elif options.get("map", quantization.maps[0]) not in quantization.maps:
        message = f'a state with dtype="{options["dtype"]}" has no map "{options["map"]}"'
        source.error(given["map"], message, f"its maps: {', '.join(quantization.maps)}")


def check_quantized_rule(source: Source, algorithm: Algorithm) -> None:
    """Check that a rule with quantized states takes no sparse gradients: rows share its blocks."""
    for state in algorithm.states:
        if state.is_quantized and algorithm.gradient != "dense":
            message = f"`{state.symbol}` has {state.width}, in a rule for sparse gradients"
            hint = (
                f'leave gradient="{algorithm.gradient}" out: rows do not have blocks of their own'
            )
            source.error_at(state.place, message, hint)
