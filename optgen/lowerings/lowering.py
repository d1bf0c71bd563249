"""Define a lowering: its function, its template, and the name of the file that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optgen.ir.algorithm import Algorithm

Context = Mapping[str, Any]


@dataclass(frozen=True)
class Lowering:
    """Lowering that writes one generated file.

    `lower` turns an algorithm into the variables of `template`. `content` says what the file
    contains: code for a "rule", or the "optimizer" class or "function" that runs the rule. A
    derived algorithm (`base=`) shares its base's rule, so only its class file is written. `refusal`
    returns in a few words why this lowering cannot take a rule; "" if it can.
    """

    name: str
    filename: str
    template: str
    lower: Callable[[Algorithm], Context]
    content: Literal["rule", "optimizer", "function"] = "rule"
    refusal: Callable[[Algorithm], str] = lambda algorithm: ""

    def applies(self, algorithm: Algorithm) -> bool:
        """Tell whether this lowering writes a file for an algorithm."""
        if self.content == "rule":
            return algorithm.base is None and not self.refusal(algorithm)
        return algorithm.is_function is (self.content == "function")
