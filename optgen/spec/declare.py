"""How a spec declares itself, its state and its hyperparameters, as Python that does nothing.

A spec is read from its source and never executed; a module that holds one may still be imported (a
notebook, an editor, a test), so `@optimizer` returns an inert `Spec` and a declaration is a token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from optgen.ir.nodes import NOWHERE, Place
from optgen.spec.errors import SpecError
from optgen.spec.function_source import source_of_function


@dataclass(frozen=True)
class Spec:
    """A spec as it was written: its source text, the file it stands in, and its first line there.

    The text is a file's, or that of one function with the constants and helpers it names.
    `name` is the name of the optimizer class. Hand it to `optgen.load`.
    """

    name: str
    source: str
    file: str
    line: int

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse to run: a spec is read, and becomes a class by `optgen.load`."""
        raise TypeError(
            f"{self.name} is a spec, which is read and never run; "
            f"make a class of it first: {self.name} = optgen.load({self.name})"
        )

    def __repr__(self) -> str:
        return f"<Spec {self.name} from {Path(self.file).name}:{self.line}>"


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
) -> Callable[[Callable[..., None]], Spec]:
    """Mark a function as the spec of an optimizer.

    Args:
        *bare: nothing; it is here to say what is wrong with `@optimizer` without brackets.
        paper: where the algorithm was published (a URL).
        base: the algorithm whose rule this is, with other defaults and `fixed` values.
        keywords: the order of all arguments, where it is not the spec's own; what follows "*" is
            keyword-only.
        group: the order of the param group's keys, where it is not the spec's own.
        gradient: "dense"; "rows", if sparse gradients work too; or "sparse_only".
        sparse_hint: how the error about a gradient of the wrong kind ends.
        step: what the step count is in a checkpoint, a 0-dim "tensor" or an "int".
        scalar_device: where the step count and scalar states are while neither `fused` nor
            `capturable` wants them beside the parameter: "cpu", or "param", beside it always.

    Returns:
        A decorator that turns the function into an inert `Spec`.

    Raises:
        SpecError: the function's text cannot be found, or the decorator has no brackets.
    """
    for function in bare:
        _refuse_bare(_as_written(function))
    return _as_written


def _refuse_bare(spec: Spec) -> NoReturn:
    """Raise the error about a decorator without brackets."""
    lines = ["\n"] * (spec.line - 1) + spec.source.splitlines(keepends=True)
    marks = [n for n, line in enumerate(lines) if line.lstrip().startswith("@")]
    line = marks[0] if marks else spec.line - 1
    raise SpecError(
        Place(spec.file, line + 1, lines[line].find("@") + 2),
        "the only decorator of the language is @optimizer(…)",
        '@optimizer(paper="https://…")',
        "".join(lines),
    )


def elementwise(function: Callable[..., None]) -> Spec:
    """Mark a function as a rule over parallel lists of tensors, for which there is no class.

    Before `/` stand the lists, after `*` the numbers; the rule is that of one tensor of each list,
    element by element. What it assigns to a list is stored there; one list at least is only read.
    """
    return _as_written(function)


def _as_written(function: Callable[..., None]) -> Spec:
    """The function's text, where Python can find it."""
    try:
        text, first = source_of_function(function)
    except OSError:
        code = getattr(function, "__code__", None)
        raise SpecError(
            Place(code.co_filename, code.co_firstlineno, 1) if code else NOWHERE,
            f"the text of `{function.__name__}` cannot be found, and a spec is read, not run",
            "write it into a file or a notebook cell; what is typed at a prompt leaves no text",
        ) from None
    file = inspect.getsourcefile(function) or "<unknown>"
    return Spec(function.__name__, text, file, first)


@dataclass(frozen=True)
class Declared:
    """A token: what a declaration evaluates to if somebody imports the spec file."""

    word: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


def state(
    key: str,
    *,
    init: float | str = 0.0,
    shape: str = "like",
    dtype: str | None = None,
    when: str | None = None,
    eager: bool = False,
    rows: bool = True,
) -> Any:
    """Declare something remembered from one step to the next.

    Args:
        key: its name in a checkpoint: `state("exp_avg")`.
        init: where it starts: a number, a hyperparameter's name, or "p", a copy of the parameter.
        shape: "like" the parameter; one number per "row" or per "col" of it (its shape, with one
            element along the last axis or the axis before it); or one "scalar" per parameter.
        dtype: None, the parameter's, or "float32". Of a "scalar": None or "float64"; "float32"; or
            "torch", what torch keeps its own in: float32, or float64 where that is the default.
        when: the hyperparameter whose truth brings it into being: "amsgrad", "not amsgrad"; or
            "factored", "not factored", which the parameter is if it has rows and columns.
        eager: made by the constructor, not by the first step.
        rows: False if every row changes in every step, also where a sparse gradient names few: with
            this state a sparse gradient is taken as a dense one.
    """
    options = {"init": init, "shape": shape, "dtype": dtype, "when": when, "eager": eager}
    return Declared("state", (key,), (*options.items(), ("rows", rows)))


def hyper(
    default: float | tuple[float | None, ...] | None,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    optional: bool = False,
    error: str = "",
    tensor: str = "never",
    about: str = "",
    rows: bool = True,
) -> Any:
    """Declare a hyperparameter that is a number, or a tuple of them.

    Args:
        default: a number, or a tuple of numbers that the rule unpacks: `beta1, beta2 = betas`.
        ge, gt, le, lt: the smallest and the largest number allowed; gt and lt exclude it.
        optional: whether it may be None; the rule asks by `if clip is not None:`. Of a tuple, those
            numbers may be that are None by default.
        error: what the constructor says of a number out of bounds, `{}` for the number and
            `{index}` or `{number}` for its place in a tuple, from 0 or 1; "" has torch's words.
        tensor: whether a tensor of one element will do: "never"; "always", and then the for-loop
            computes in the tensor's dtype; "capturable", the same, but not together with foreach
            unless capturable; or "number": a tensor is read as the number it holds.
        about: what the docstring of the class says of it.
        rows: False if a sparse gradient is an error where this is true.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    options = {**bounds, "optional": optional, "error": error, "tensor": tensor, "about": about}
    options["rows"] = rows
    return Declared("hyper", (default,), tuple(options.items()))


def flag(default: bool, *, about: str = "") -> Any:
    """Declare a hyperparameter that is True or False, and what it is by default.

    Args:
        default: True or False.
        about: what the docstring of the class says of it.
    """
    return Declared("flag", (default,), (("about", about),))


def choice(default: str | None, *others: str | None, error: str = "", about: str = "") -> Any:
    """Declare a hyperparameter that is one of a few strings or None; the first is the default.

    The rule asks by `if norm == "first":`, or `is None`.

    Args:
        default, *others: what it may be.
        error: what the constructor says of anything else, `{}` for it; "" has torch's words.
        about: what the docstring of the class says of it.
    """
    return Declared("choice", (default, *others), (("error", error), ("about", about)))


def fixed(value: bool) -> Any:
    """Declare a key of the param group that is no argument: True or False for good."""
    return Declared("fixed", (value,), ())
