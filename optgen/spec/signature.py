"""The signature of a spec: what training hands over / what is remembered * what the user chooses."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from optgen.ir.algorithm import Bounds, Hyper, State
from optgen.ir.words import WORDS
from optgen.spec.errors import did_you_mean
from optgen.spec.literals import literal
from optgen.spec.source import Source

_STATE_OPTIONS = ("init", "shape", "dtype", "when", "eager")
_HYPER_OPTIONS = ("ge", "gt", "le", "lt", "optional", "error", "tensor")
_SHAPES = ("like", "scalar")
_DTYPES = (None, "float32")
_TENSOR = ("never", "always", "capturable")
_RESERVED = ("maximize", "foreach", "fused", "capturable", "differentiable", "params")


class Signature:
    """Reads one function's signature into states and hyperparameters."""

    def __init__(self, source: Source, constants: Mapping[str, Any], node: ast.FunctionDef) -> None:
        self.source = source
        self.constants = constants
        self.node = node
        self.check_names()

    def check_names(self) -> None:
        """A name of the signature may not be a word, nor an argument the generator adds."""
        arguments = self.node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.arg in WORDS:
                self.source.error(
                    argument,
                    f"`{argument.arg}` shadows a word of the language",
                    "choose another name",
                )
            if argument.arg in _RESERVED:
                self.source.error(
                    argument,
                    f"`{argument.arg}` is added by the generator to every optimizer",
                    "leave it out, or choose another name",
                )
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                self.source.error(extra, "a spec has no *args and no **kwargs")

    def inputs(self) -> tuple[str, str, str | None]:
        """The letters of the parameter, the gradient and (or None) the step count."""
        names = [a.arg for a in self.node.args.posonlyargs if a.arg not in self._defaults()]
        if len(names) not in (2, 3):
            self.source.error(
                self.node,
                "a spec starts with the parameter, the gradient and, if it counts steps, t, then `/`",
                f"def {self.node.name}(p, g, t, /, …)",
            )
        return names[0], names[1], names[2] if len(names) == 3 else None

    def _defaults(self) -> dict[str, ast.expr]:
        positional = [*self.node.args.posonlyargs, *self.node.args.args]
        defaults = self.node.args.defaults
        named = positional[len(positional) - len(defaults) :]
        return {a.arg: d for a, d in zip(named, defaults, strict=True)}

    def states(self) -> tuple[State, ...]:
        """What stands between `/` and `*`."""
        defaults = self._defaults()
        result: list[State] = []
        for argument in self.node.args.args:
            declaration = defaults.get(argument.arg)
            if not _calls(declaration, "state"):
                self.source.error(
                    argument,
                    f"`{argument.arg}` stands between `/` and `*`, where state is declared",
                    f'{argument.arg}=state("checkpoint_key")',
                )
            result.append(self._state(argument.arg, declaration))
        self._check_keys(result)
        return tuple(result)

    def _check_keys(self, states: list[State]) -> None:
        seen = {"step": "the step count"}
        for state in states:
            if state.key in seen:
                self.source.error_at(
                    state.place,
                    f'duplicate checkpoint key "{state.key}"',
                    f"it is taken by {seen[state.key]}",
                )
            seen[state.key] = f"`{state.symbol}`"

    def _state(self, symbol: str, node: Any) -> State:
        args, options = self._arguments(node, _STATE_OPTIONS)
        if len(args) != 1 or not isinstance(args[0], str) or not args[0].isidentifier():
            self.source.error(
                node, "a state needs its checkpoint key", f'{symbol}=state("exp_avg")'
            )
        for name, allowed in (("shape", _SHAPES), ("dtype", _DTYPES)):
            if name in options and options[name] not in allowed:
                choices = ", ".join(repr(a) for a in allowed)
                self.source.error(
                    node, f"{name} {options[name]!r} is not known", f"one of {choices}"
                )
        return State(symbol, args[0], place=self.source.place(node), **options)

    def hypers(self) -> tuple[Hyper, ...]:
        """What stands after `*`."""
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
                args, _ = self._arguments(node, ())
                if not args or not all(isinstance(a, str | None) for a in args):
                    self.source.error(
                        node, "a choice is among strings and None", 'choice("a", None)'
                    )
                place = self.source.place(node)
                return Hyper(name, "choice", args[0], choices=tuple(args), place=place)
        self.source.error(
            argument,
            f"`{name}` stands after `*`, where hyperparameters are declared",
            f"{name}=hyper(1e-3, ge=0) or {name}=flag(False)",
        )

    def _flag(self, name: str, node: ast.Call, *, fixed: bool) -> Hyper:
        args, _ = self._arguments(node, ())
        word = "fixed" if fixed else "flag"
        if len(args) != 1 or not isinstance(args[0], bool):
            self.source.error(node, f"`{word}` takes True or False", f"{name}={word}(False)")
        return Hyper(name, "flag", args[0], fixed=fixed, place=self.source.place(node))

    def _number(self, name: str, node: ast.Call) -> Hyper:
        args, options = self._arguments(node, _HYPER_OPTIONS)
        if len(args) != 1:
            self.source.error(node, "`hyper` takes its default", f"{name}=hyper(1e-3, ge=0)")
        default = args[0]
        bounds = Bounds(**{k: options.pop(k) for k in ("ge", "gt", "le", "lt") if k in options})
        if options.get("tensor", "never") not in _TENSOR:
            self.source.error(node, f"tensor {options['tensor']!r} is not known", str(_TENSOR))
        self._check_default(name, node, default, bounds, bool(options.get("optional")))
        sort = "tuple" if isinstance(default, tuple) else "number"
        return Hyper(name, sort, default, bounds, place=self.source.place(node), **options)

    def _check_default(
        self, name: str, node: ast.expr, default: Any, bounds: Bounds, optional: bool
    ) -> None:
        for value in default if isinstance(default, tuple) else (default,):
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                self.source.error(
                    node, f"the default of `{name}` is no number: {value!r}", "or use flag, choice"
                )
            if not bounds.admits(value):
                self.source.error(node, f"the default of `{name}`, {value}, is outside its range")

    def _arguments(
        self, node: ast.Call, allowed: tuple[str, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The literal arguments of a declaration."""
        options: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg not in allowed:
                self.source.error(
                    keyword.value,
                    f"unknown option `{keyword.arg}`",
                    did_you_mean(
                        str(keyword.arg), allowed, f"options: {', '.join(allowed) or 'none'}"
                    ),
                )
            options[keyword.arg] = literal(keyword.value, self.source, self.constants)
        args = tuple(literal(a, self.source, self.constants) for a in node.args)
        return args, options


def _calls(node: ast.expr | None, word: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == word
