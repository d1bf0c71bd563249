"""Names that a spec may not give away, because they mean something in the generated code."""

from __future__ import annotations

import ast
import keyword
import string
from collections.abc import Iterator

from optgen.ir.words import WORDS
from optgen.spec.source import Source

ADDED = ("maximize", "foreach", "fused", "capturable", "differentiable")
"""Arguments that the generator adds to every optimizer."""

DECLARATIONS = ("optimizer", "state", "hyper", "flag", "choice", "fixed", "require")
_LISTS = ("params", "grads", "state_steps")
_CALLED = (
    "advance",
    "advance_one",
    "store",
    "store_one",
    "scale_",
    "slices",
    "cuts",
    "len",
    "range",
)
_OTHERS = ("self", "torch", "Tensor", "list", "cut", "index")
_USED = (*_LISTS, *_CALLED, *_OTHERS)


def why_taken(name: str) -> str:
    """Why a spec may not call anything of its own by that name, or ""."""
    if name in WORDS or name in DECLARATIONS:
        return "shadows a word of the language"
    if name in ADDED:
        return "is added by the generator to every optimizer"
    if name in _USED or keyword.iskeyword(name):
        return "means something else in the generated code"
    if not name.isascii():
        return "is not ASCII, as names in the generated code are"
    return ""


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
