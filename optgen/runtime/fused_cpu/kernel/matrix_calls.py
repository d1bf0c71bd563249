"""Parse and call the matrix ops of a compiled rule, which its kernel leaves to Python."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from optgen.contract.states import FACTS
from optgen.runtime import matrix_ops

_CALL = re.compile(r"(\w+) = (\w+)\((\w+)((?:, [^,]+)*?)\)(?: if ([\w ]+))?")


@dataclass(frozen=True)
class MatrixCall:
    """Call of a matrix op: `target = op(source, *arguments) if condition`.

    Arguments are keys of a group, or numbers. The condition is a predicate of a parameter's shape,
    such as "factored" or "not factored". The op applies to the parameters that satisfy the
    condition, or to all if the condition is "".
    """

    target: str
    op: str
    source: str
    arguments: tuple[str, ...]
    condition: str = ""

    def selected_indices(self, params: Sequence[Tensor]) -> list[int]:
        """Return the indices of the parameters that the op applies to."""
        fact = self.condition.removeprefix("not ")
        return [
            index
            for index, param in enumerate(params)
            if not fact or FACTS[fact](param.shape) is (fact == self.condition)
        ]

    def __call__(self, group: Mapping[str, Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Apply the op to tensors of one group; return the results."""
        arguments = (group[name] if name in group else float(name) for name in self.arguments)
        results: list[Tensor] = getattr(matrix_ops, self.op)(tensors, *arguments)
        return results


def parse_calls(text: str) -> tuple[MatrixCall, ...]:
    """Return the calls that a compiled rule exports as text, in order."""
    return tuple(map(_parse_call, filter(None, text.split("; "))))


def _parse_call(text: str) -> MatrixCall:
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(f"not a call of a matrix op: {text!r}")
    arguments = tuple(match[4].split(", ")[1:])
    return MatrixCall(match[1], match[2], match[3], arguments, match[5] or "")
