"""Names that a spec may not give away, because they mean something in the generated code."""

from __future__ import annotations

import ast
import keyword
import re
import string
from collections.abc import Iterator

from optgen.ir.generated_names import PYTHON, relatives
from optgen.ir.ops import BY_ELEMENT, FACTS, OPS
from optgen.spec.source import Source

ADDED_ARGUMENTS = ("maximize", "foreach", "fused", "capturable", "differentiable")
"""Arguments that the generator adds to every optimizer."""

SHADOWABLE = frozenset(OPS).difference(BY_ELEMENT, FACTS)
"""Words that a spec may give away, `norm` or `rows`, as long as it does not call them."""

GENERATED_MODULES = ("forloop", "foreach", "fused_cpu", "fused_triton")
"""Modules beside a generated class or function, which would take its place in their package."""

DECLARATIONS = ("optimizer", "elementwise", "state", "hyper", "flag", "choice", "fixed", "require")
_SNAKE_CASE = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")
_INPUTS = ("param", "grad", "step")
_FIXED = PYTHON.union(_INPUTS, *map(relatives, _INPUTS), ("state_steps",))


def is_snake_case(name: str) -> bool:
    """Whether a module may be called so: lower-case words joined by underscores, no keyword."""
    return bool(_SNAKE_CASE.fullmatch(name)) and not keyword.iskeyword(name)


def why_taken(name: str) -> str:
    """Why a spec may not call anything of its own by that name, or ""."""
    if (name in OPS and name not in SHADOWABLE) or name in DECLARATIONS:
        return "shadows a word of the language"
    if name in ADDED_ARGUMENTS:
        return "is added by the generator to every optimizer"
    if keyword.iskeyword(name):
        return "is a keyword of Python"
    if name.startswith("__") and name.strip("_"):
        return "begins with two underscores, as names of Python's own do"
    if not name.isascii():
        return "is not ASCII, as names in the generated code are"
    return ""


def why_taken_verbatim(name: str) -> str:
    """Why a name that generated code cannot change, a hyperparameter's or a class's, is taken."""
    return why_taken(name) or ("means something else in the generated code" * (name in _FIXED))


def why_taken_as_spec_name(name: str) -> str:
    """Why no class and no function of a spec may have that name, or ""."""
    return why_taken_verbatim(name) or (
        "is called as a generated file is" * (name in GENERATED_MODULES)
    )


def message_fields(text: str, node: ast.AST, source: Source) -> Iterator[str]:
    """The names that a message holds in braces."""
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        hint = "a name in braces, or no braces"
        source.error(node, f"the message is no format string: {error}", hint)
    for _, name, format_spec, conversion in fields:
        if format_spec or conversion:
            source.error(node, f"`{{{name}…}}` in a message", "a name in braces, nothing more")
        if name is not None:
            yield name
