"""Define what a spec file imports to declare: decorators, states, hyperparameters. Nothing runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from optgen.ir.nodes import NOWHERE, Place
from optgen.ir.ops import Word
from optgen.spec.errors import SpecError
from optgen.spec.source import source_of_function


@dataclass(frozen=True)
class DeclarationToken:
    """Token that a call of a declaration returns when a spec file is imported."""

    declaration: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


def state(
    key: str,
    *,
    init: float | str = 0.0,
    shape: str | tuple[str, str] = "like",
    dtype: str | None = None,
    when: str | None = None,
    role: str = "",
    eager: bool = False,
    rows: bool = True,
    block: int | None = None,
    map: str | None = None,
    min_elements: int = 4096,
) -> Any:
    """Declare a state, which is kept from one step to the next.

    Args:
        key: its name in a checkpoint: `state("exp_avg")`.
        init: its initial value: a number, a hyperparameter's name, "p", a copy of the parameter,
            or "index", the parameter's number in the optimizer.
        shape: "like" the parameter; "row", one number per row: the parameter's shape with size 1 in
            the last axis; "col", one number per column: size 1 in the last axis but one; "scalar",
            one number per parameter; "group", one number for all parameters of a group, which the
            group keeps under the key; "all", one number for all groups, which each of them keeps;
            or a matrix: two of "rows", "cols" and "rank", such as ("rows", "rows") or
            ("cols", "rank"). The rank is a hyperparameter of this name.
        dtype: None for the parameter's dtype; "at_least_float32" for float32 where the parameter
            has 16 bits, and else the parameter's dtype; "float32", "bfloat16" or "float16". With
            one of them, a step computes in float32 or wider. For a "scalar": "float64", which None
            means too; "float32"; or "torch" for torch's own choice, which is float32, or float64 if
            that is the default dtype. "8bit" or "fp8" for codes of 8 bits, or "4bit", with a
            float32 scale for each block.
        when: the condition under which it exists: a hyperparameter, "amsgrad" or "not amsgrad"; or
            "factored", "tall" or their negations. A parameter with rows and columns is factored; it
            is tall if it has no fewer rows than columns.
        role: "second_moment" for a mean of squared gradients. Modifiers find the state by its role.
        eager: whether the constructor creates it, instead of the first step.
        rows: False if every row changes in every step, even where a sparse gradient holds few rows.
            While such a state exists, a sparse gradient is used as a dense one.
        block: of a state of codes, the consecutive elements that share a scale: 64, 128, 256 or
            512. The default is 256; for "4bit", 128.
        map: of a state with dtype="8bit", the values that codes stand for: "dynamic", which are
            closer together the smaller they are, or "linear". "fp8" has one map, "e4m3": the values
            of torch.float8_e4m3fn; "4bit" has "dynamic4".
        min_elements: parameters with fewer elements have such a state in float32.
    """
    options = {"init": init, "shape": shape, "dtype": dtype, "when": when, "eager": eager}
    options |= {"block": block, "map": map, "min_elements": min_elements}
    return DeclarationToken("state", (key,), (*options.items(), ("role", role), ("rows", rows)))


def given(name: Any, *, shape: str | tuple[str, ...] = "like") -> Any:
    """Declare an extra input, `h=given("hessian")`; in a rule, tell whether a step gets it.

    Args:
        name: the argument of `step` that hands it over: `optimizer.step(hessian=[…])`, one tensor
            or None per parameter in the order of the groups. In a rule: the input.
        shape: "like" the parameter, or another shape that a `state` may have: "row", "col",
            ("cols", "cols") and the other matrices; or () for one number.
    """
    return DeclarationToken("given", (name,), (("shape", shape),))


def hyper(
    default: float | tuple[float | None, ...] | None,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    whole: bool = False,
    optional: bool = False,
    error: str = "",
    tensor: str = "never",
    about: str = "",
    groups: str = "any",
    rows: bool = True,
) -> Any:
    """Declare a hyperparameter that is a number or a tuple of numbers.

    Args:
        default: a number, or a tuple of numbers that the rule unpacks: `beta1, beta2 = betas`.
        ge, gt, le, lt: bounds on the number: at least, above, at most, below.
        whole: whether it is a whole number, as a count of steps is: 2.5 is refused.
        optional: whether it may be None. The rule tests this with `if clip is not None:`. In a
            tuple, a number may be None if its default is None.
        error: the constructor's message for a number out of bounds. `{}` stands for the number, and
            `{index}` or `{number}` for its place in a tuple, counted from 0 or from 1. "" for
            torch's message.
        tensor: whether the class declares that a tensor of one element is accepted: "never", and no
            check looks for one; "always", and the for-loop computes in the tensor's dtype;
            "capturable", as "always", but with foreach only if capturable; or "number": always, and
            only the value of the tensor is used.
        about: its description in the docstring of the class.
        groups: the values that param groups may have: "any"; "equal", one value for all groups; or
            "equal or 0", one value that some groups may replace by 0. Other values are an error.
        rows: False if a sparse gradient is an error while this hyperparameter is true.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt, "whole": whole}
    options = {**bounds, "optional": optional, "error": error, "tensor": tensor, "about": about}
    options |= {"groups": groups, "rows": rows}
    return DeclarationToken("hyper", (default,), tuple(options.items()))


def flag(default: bool, *, about: str = "", groups: str = "any") -> Any:
    """Declare a hyperparameter that is True or False.

    Args:
        default: True or False.
        about: its description in the docstring of the class.
        groups: "equal" if all param groups have one value.
    """
    return DeclarationToken("flag", (default,), (("about", about), ("groups", groups)))


def choice(
    default: str | None,
    *others: str | None,
    error: str = "",
    about: str = "",
    groups: str = "any",
) -> Any:
    """Declare a hyperparameter that is one of a few strings or None; the first is the default.

    The rule tests it with `if norm == "first":` or `if norm is None:`.

    Args:
        default, *others: the values it may have.
        error: the constructor's message for any other value, with `{}` for the value; "" for
            torch's message.
        about: its description in the docstring of the class.
        groups: "equal" if all param groups have one value.
    """
    options = (("error", error), ("about", about), ("groups", groups))
    return DeclarationToken("choice", (default, *others), options)


def fixed(value: bool | str) -> Any:
    """Declare a param group's key that is no argument.

    Args:
        value: always True or always False, or "narrow": whether the group has a parameter of 16
            bits.
    """
    return DeclarationToken("fixed", (value,), ())


def optimizer(
    *bare: Callable[..., None],
    paper: str = "",
    base: str | None = None,
    keywords: tuple[str, ...] = (),
    group: tuple[str, ...] = (),
    gradient: str = "dense",
    sparse_hint: str = "",
    step: str = "tensor",
    scalar_device: str = "cpu",
    compute_dtype: str = "at_least_float32",
    zero_grad: bool = False,
) -> Callable[[Callable[..., None]], Spec]:
    """Mark a function as the spec of an optimizer.

    Args:
        *bare: the function, if the decorator is written without brackets; this is an error.
        paper: where the algorithm was published: an http or https URL, doi:10.… or arXiv:….
        base: the algorithm whose rule this spec takes over, with other defaults and `fixed` values.
        keywords: the order of all arguments, if not the spec's own; arguments after "*" are
            keyword-only.
        group: the order of the param group's keys, if not the spec's own.
        gradient: "dense"; "rows", if sparse gradients work too; or "sparse_only".
        sparse_hint: the last words of the error about a gradient that is wrongly sparse or dense.
        step: the type of the step count in a checkpoint, a 0-dim "tensor" or an "int".
        scalar_device: the device of the step count and of scalar states in a group that is neither
            `fused` nor `capturable`: "cpu", or "param" for the parameter's device.
        compute_dtype: the dtype in which `forloop` and `foreach` compute elements. The default is
            at least float32, as the fused lowerings do; "param" is the parameter's dtype, as in
            torch's classes.
        zero_grad: whether a step leaves the gradients at zero.

    Returns:
        A decorator that turns the function into an inert `Spec`.

    Raises:
        SpecError: the function's text cannot be found, or the decorator has no brackets.
    """
    for function in bare:
        _refuse_bare(inert_spec(function))
    return inert_spec


def _refuse_bare(spec: Spec) -> NoReturn:
    """Raise the SpecError for a decorator without brackets."""
    lines = ["\n"] * (spec.line - 1) + spec.source.splitlines(keepends=True)
    decorators = [n for n, line in enumerate(lines) if line.lstrip().startswith("@")]
    line_index = decorators[0] if decorators else spec.line - 1
    raise SpecError(
        Place(spec.file, line_index + 1, lines[line_index].find("@") + 2),
        "the only decorator of the language is @optimizer(…)",
        '@optimizer(paper="https://…")',
        "".join(lines),
    )


def modifier(
    *,
    stage: str,
    weights: str = "",
    follows: bool = False,
    step: str = "",
    guard: str = "",
    zero_grad: bool = False,
) -> Callable[[Callable[..., None]], Modifier]:
    """Mark a function as a modifier of optimizers, for `optgen.compose`.

    The function takes some of the names p, g, v, u, t and lr before `/`: the parameter, its
    gradient, the second moment, the update that will be added to the parameter, the step count, and
    the learning rate. States stand between `/` and `*`, hyperparameters after `*`.

    Args:
        stage: when the modifier runs, and so what it changes.
        weights: a state that the rule and the modifiers of the update read and move instead of the
            parameter.
        follows: whether an element of `weights` that no longer rounds to the parameter becomes the
            parameter's, before the rule.
        step: a variable or a state that all later parts read instead of the step count.
        guard: a variable. Unless it is true, the parameter and all states keep their values.
        zero_grad: whether the step leaves the gradients at zero.

    Returns:
        A decorator that turns the function into an inert `Modifier`.
    """
    return lambda function: Modifier(inert_spec(function))


def elementwise(function: Callable[..., None]) -> Spec:
    """Mark a function as a rule over parallel lists of tensors, for which there is no class.

    Lists are declared before `/`, numbers after `*`. The rule is written for one tensor of each
    list and works element by element. Assigning to a list's name stores into the list. At least
    one list is only read.
    """
    return inert_spec(function)


@dataclass(frozen=True)
class Spec:
    """A spec as it was written: its source text, its file, and the line where the text begins.

    The text is that of a whole file, or of one function with the constants and helpers it uses.
    `name` is the name of the optimizer class. `optgen.load` makes the class.
    """

    name: str
    source: str
    file: str
    line: int

    def train(self, function: Callable[..., None]) -> DeclarationToken:
        """Mark a function of the same text as the program of the optimizer's `train()`.

        The function names the parameter and states before `/`, and hyperparameters after `*`.
        """
        return self._program("train", function)

    def eval(self, function: Callable[..., None]) -> DeclarationToken:
        """Mark a function of the same text as the program of the optimizer's `eval()`.

        The function names the parameter and states before `/`, and hyperparameters after `*`.
        """
        return self._program("eval", function)

    def _program(self, mode: str, function: Callable[..., None]) -> DeclarationToken:
        """Return a token for a program, whose text the optimizer's text already contains.

        Raises:
            SpecError: the program stands in another file or notebook cell.
        """
        program = inert_spec(function)
        lines = self.source.splitlines()
        end = self.line + len(lines)
        if program.file != self.file or not self.line <= function.__code__.co_firstlineno < end:
            raise SpecError(
                Place(program.file, program.line, 1),
                f"`{function.__name__}` is a program of `{self.name}`, but not in its text",
                f"write it below `{self.name}`, in the same file or cell",
                "\n" * (program.line - 1) + program.source,
            )
        return DeclarationToken(mode, (self.name, function.__name__), ())

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise a TypeError: a spec never runs. `optgen.load` makes a class of it."""
        raise TypeError(
            f"{self.name} is a spec, and a spec is read and never run; "
            f"make a class of it first: {self.name} = optgen.load({self.name})"
        )

    def __repr__(self) -> str:
        return f"<Spec {self.name} from {Path(self.file).name}:{self.line}>"


@dataclass(frozen=True)
class Modifier:
    """A modifier of optimizers, and the values of its hyperparameters.

    A call returns the modifier with other values: positional ones in the order in which the
    modifier declares its hyperparameters, and others by name.
    """

    spec: Spec
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The modifier's name."""
        return self.spec.name

    def train(self, function: Callable[..., None]) -> DeclarationToken:
        """Mark a function of the same text as a program of the composition's `train()`."""
        return self.spec.train(function)

    def eval(self, function: Callable[..., None]) -> DeclarationToken:
        """Mark a function of the same text as a program of the composition's `eval()`."""
        return self.spec.eval(function)

    def __call__(self, *args: Any, **options: Any) -> Modifier:
        """Return the modifier with these values.

        Raises:
            TypeError: a value is for no hyperparameter, or a hyperparameter gets two values.
        """
        hyper_names = [name for name, _ in hypers_of(self.spec)]
        listed = ", ".join(hyper_names) or "none"
        if len(args) > len(hyper_names):
            count = f"{len(hyper_names)} argument{'s' * (len(hyper_names) != 1)}"
            raise TypeError(f"{self.spec.name} takes {count}: {listed}")
        positional = dict(zip(hyper_names, args, strict=False))
        for name in options:
            if name not in hyper_names or name in positional:
                problem = "is given twice" if name in positional else "is no argument"
                raise TypeError(f"{self.spec.name}: `{name}` {problem}; it takes {listed}")
        return replace(self, values=tuple({**dict(self.values), **positional, **options}.items()))

    @property
    def __signature__(self) -> inspect.Signature:
        """The arguments of a call with their defaults, for `inspect.signature` and editors."""
        parameter_kind, values = inspect.Parameter.POSITIONAL_OR_KEYWORD, dict(self.values)
        return inspect.Signature(
            [
                inspect.Parameter(
                    name, parameter_kind, default=values.get(name, _default(declaration))
                )
                for name, declaration in hypers_of(self.spec)
            ]
        )

    def __repr__(self) -> str:
        return f"{self.name}{inspect.signature(self)}"


def _default(declaration: str) -> Any:
    """Return the default in the text of a declaration, such as `hyper(0.9, ge=0)`."""
    call = ast.parse(declaration, mode="eval").body
    try:
        return ast.literal_eval(call.args[0]) if isinstance(call, ast.Call) else None
    except (IndexError, ValueError):  # the check of the modifier reports this mistake
        return inspect.Parameter.empty


def hypers_of(spec: Spec) -> list[tuple[str, str]]:
    """Return the names of a spec's hyperparameters, each with the text of its declaration.

    What is `fixed` is no argument, and is left out.
    """
    tree = ast.parse(textwrap.dedent(spec.source))
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list]
    arguments = functions[0].args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    texts = ((argument.arg, ast.unparse(default)) for argument, default in pairs if default)
    return [(name, text) for name, text in texts if not text.startswith("fixed(")]


def inert_spec(function: Callable[..., None]) -> Spec:
    """Return a Spec with the function's source text.

    Raises:
        SpecError: Python cannot find the text.
    """
    try:
        text, first_line = source_of_function(function)
    except OSError:
        code = getattr(function, "__code__", None)
        raise SpecError(
            Place(code.co_filename, code.co_firstlineno, 1) if code else NOWHERE,
            f"the text of `{function.__name__}` cannot be found, and a spec is read, not run",
            "write it into a file or a notebook cell; Python keeps no text of a prompt's input",
        ) from None
    file = inspect.getsourcefile(function) or "<unknown>"
    return Spec(function.__name__, text, file, first_line)


def require(condition: Any, message: str) -> None:
    """Make the constructor raise a ValueError if a condition does not hold.

    Args:
        condition: comparisons of hyperparameters, joined by and, or, not; or a condition on the
            parameter, such as `ndim(p) == 2`.
        message: the message of the ValueError. A hyperparameter's name in braces stands for its
            value, and `{shape}` for the parameter's shape.
    """
    _refuse("require")


def word_function(word: Word) -> Callable[..., Any]:
    """Return the function that a spec imports for a word. A call raises a TypeError."""

    def function(*_: Any, **__: Any) -> Any:
        _refuse(word.name)

    parameter, any_kind = inspect.Parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD
    defaults: dict[str, Any] = dict.fromkeys(word.arguments, parameter.empty)
    defaults |= dict.fromkeys(word.optional_arguments, None)
    parameters = [
        parameter(name, any_kind, default=default, annotation=Any)
        for name, default in defaults.items()
    ]
    for name, default in word.keywords.items():
        annotation = str if default else str | None
        parameters.append(
            parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    signature = inspect.Signature(parameters, return_annotation=Any)
    named = {"__name__": word.name, "__qualname__": word.name, "__module__": "optgen.spec"}
    for name, value in {**named, "__doc__": word.doc, "__signature__": signature}.items():
        setattr(function, name, value)
    return function


def _refuse(name: str) -> NoReturn:
    raise TypeError(f"{name}() is a function of the spec language, which is read and never run")
