"""Print the draws of random numbers in C++. A loop computes their keys before it begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from optgen.ir.generated_names import free_name
from optgen.ir.nodes import Call
from optgen.lowerings.fused_cpu.expression_printer import ExpressionPrinter

_FUNCTIONS = {"random": "random_numbers", "random16": "random_numbers16"}
"""C++ function that draws the numbers of an op."""
_KEYS = {"random": "RandomKey", "random16": "RandomKey16"}
"""C++ type of the key from which an op draws."""


def make_key(draw: Call, number_printer: ExpressionPrinter) -> str:
    """Return the text that makes the key of a draw."""
    return f"{_KEYS[draw.op]}({', '.join(map(number_printer, draw.args))})"


@dataclass
class RandomKeys:
    """Keys of the random numbers that a loop draws. Equal draws share a key."""

    number_printer: ExpressionPrinter
    used_names: Collection[str]
    names: dict[str, str] = field(default_factory=dict)  # by the text that makes the key

    def declarations(self) -> Iterator[str]:
        """Yield the statement that declares each key."""
        for text, name in self.names.items():
            yield text.replace("(", f" {name}(", 1) + ";"

    def numbers(self, draw: Call) -> str:
        """Return the text that draws a number for each element that an iteration computes."""
        return f"{_FUNCTIONS[draw.op]}<S>(first + i, {self._key(draw)})"

    def bits(self, draw: Call) -> str:
        """Return the text that draws 16 random bits to round each element of an iteration."""
        return f"random_bits16<S>(first + i, {self._key(draw)})"

    def _key(self, draw: Call) -> str:
        """Return the name of a draw's key."""
        used_names = {*self.used_names, *self.names.values()}
        name = free_name("random_key", used_names)
        return self.names.setdefault(make_key(draw, self.number_printer), name)
