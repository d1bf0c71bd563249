"""Matrix words between the parts of a step, as a compiled rule names them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from optgen.runtime import matrix_ops
from optgen.runtime.rule import FACTS

_CALL = re.compile(r"(\w+) = (\w+)\((\w+)((?:, [^,]+)*?)\)(?: if ([\w ]+))?")


@dataclass(frozen=True)
class Call:
    """`target = word(source, *arguments) if when`: arguments are keys of a group, or numbers.

    A fact of a parameter, "factored" or "not factored", says which parameters it is for, if any.
    """

    target: str
    word: str
    source: str
    arguments: tuple[str, ...]
    when: str = ""

    def suited(self, params: Sequence[Tensor]) -> list[int]:
        """The places of the parameters for which it is done."""
        name = self.when.removeprefix("not ")
        return [
            place
            for place, param in enumerate(params)
            if not name or FACTS[name](param) is (name == self.when)
        ]

    def __call__(self, group: Mapping[str, Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results for tensors of one group."""
        values = (group[name] if name in group else float(name) for name in self.arguments)
        made: list[Tensor] = getattr(matrix_ops, self.word)(tensors, *values)
        return made


def calls_of(text: str) -> tuple[Call, ...]:
    """The calls that a compiled rule asks for, in order; none of an empty text."""
    found = (_CALL.fullmatch(each) for each in text.split("; ") if each)
    return tuple(
        Call(match[1], match[2], match[3], tuple(match[4].split(", ")[1:]), match[5] or "")
        for match in found
        if match
    )
