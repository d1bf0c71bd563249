"""Read calls of ops that depend on the dtype of the parameter in memory, such as `rounded(x)`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from optgen.ir.kinds import Axes
from optgen.ir.nodes import Call, Expr, Ref
from optgen.ir.ops import DRAWING_OPS, OPS, STORAGE_OPS
from optgen.spec.type_check import SHAPE_NAMES

if TYPE_CHECKING:
    from optgen.spec.expressions import Expressions

_KEYS_ADDED_TO_DRAWS = 2  # the step count, and the number of the call in the rule


def written_arity(name: str) -> int:
    """Return the number of arguments that an author writes; the spec reader adds further ones."""
    added = (name in STORAGE_OPS) + _KEYS_ADDED_TO_DRAWS * (name in DRAWING_OPS)
    return OPS[name].arity - added


def read_storage_call(reader: Expressions, node: ast.Call, name: str) -> Expr:
    """Read a call, and append the machine epsilon of the dtype to its arguments.

    The first argument and the result are tensors.
    """
    place = reader.source.place(node)
    if reader.scope.algorithm.is_function:
        hint = f"only a rule of an @optimizer may call {name}"
        message = f"`{name}` rounds to a parameter's dtype, but a function has lists"
        reader.source.error(node, message, hint)
    values = [reader.number(argument) for argument in node.args]
    axes = reader.scope.kind(values[0]).axes
    if axes is not Axes.TENSOR:
        hint = "a parameter's dtype is that of its elements: leave the call out"
        reader.source.error(node.args[0], f"`{name}` of {SHAPE_NAMES[axes]}", hint)
    eps = Call("machine_eps", (Ref(reader.scope.algorithm.param, 0, place),), place)
    return Call(name, (*values, eps), place)
