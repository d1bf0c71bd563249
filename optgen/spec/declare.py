"""Define the objects that a spec's functions become when its module is imported.

A spec is read from its source and never executed. `Spec` and `Modifier` keep that source, and run
nothing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from optgen.ir.nodes import NOWHERE, Place
from optgen.spec.declarations import DeclarationToken
from optgen.spec.errors import SpecError
from optgen.spec.function_source import source_of_function


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
