"""Tell which names a spec may not use, because the language or generated code uses them."""

from __future__ import annotations

import keyword
import re

from optgen.contract.states import FACTS
from optgen.ir.ops import ELEMENTWISE_OPS, OPS, SHADOWABLE_FUNCTIONS, WIDE_OPS
from optgen.ir.reserved_in_python import RESERVED_IN_PYTHON, derived_names

ADDED_ARGUMENTS = ("maximize", "foreach", "fused", "capturable", "differentiable")
"""Constructor arguments that the generator adds to every optimizer."""

GROUP_OPTIONS = ("view",)
"""Keys that a param group of any optimizer may have, besides its hyperparameters."""

TORCH_GROUP_KEYS = ("params", "param_names", "initial_lr")
"""Keys that torch and its schedulers keep in param groups, besides an optimizer's options."""

SHADOWABLE = frozenset(OPS).difference(ELEMENTWISE_OPS, FACTS, WIDE_OPS) | SHADOWABLE_FUNCTIONS
"""Ops whose names a spec may use for its own values if it does not call the op: `norm`, `sin`."""

GENERATED_MODULES = ("forloop", "foreach", "fused_cpu", "fused_triton")
"""Generated modules. In their package, a class or function with such a name would be lost."""

DECLARATIONS = (
    "optimizer",
    "elementwise",
    "modifier",
    "state",
    "hyper",
    "flag",
    "choice",
    "fixed",
    "given",
    "require",
)
MAX_NAME_LENGTH = 100
_SNAKE_CASE = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")
_INPUT_NAMES = ("param", "grad", "step")
_NAMES_IN_GENERATED_CODE = RESERVED_IN_PYTHON.union(
    _INPUT_NAMES, *map(derived_names, _INPUT_NAMES), ("state_steps",)
)


def is_snake_case(name: str) -> bool:
    """Tell whether a name is lower-case words joined by underscores, and no keyword of Python."""
    return bool(_SNAKE_CASE.fullmatch(name)) and not keyword.iskeyword(name)


def why_taken(name: str) -> str:
    """Return why a spec may not use a name for anything of its own, or "" if it may."""
    if (name in OPS and name not in (*SHADOWABLE, *WIDE_OPS)) or name in DECLARATIONS:
        return "shadows a name of the language"
    if name in ADDED_ARGUMENTS:
        return "is added by the generator to every optimizer"
    if keyword.iskeyword(name):
        return "is a keyword of Python"
    if name.startswith("__"):
        return "begins with two underscores, which is for Python's own names"
    if len(name) > MAX_NAME_LENGTH:
        return f"has more than {MAX_NAME_LENGTH} characters"
    if not name.isascii():
        return "is not ASCII, but names in the generated code must be"
    return ""


def why_taken_verbatim(name: str) -> str:
    """Return why a spec may not use a name that generated code keeps unchanged, or "" if it may.

    Generated code keeps the names of hyperparameters, lists, classes and functions.
    """
    if name in GROUP_OPTIONS:
        return "is an option of every param group"
    return why_taken(name) or (
        "means something else in the generated code" * (name in _NAMES_IN_GENERATED_CODE)
    )


def why_taken_as_spec_name(name: str) -> str:
    """Return why a class or function that a spec defines may not have a name, or "" if it may."""
    return why_taken_verbatim(name) or (
        "is the name of a generated file" * (name in GENERATED_MODULES)
    )
