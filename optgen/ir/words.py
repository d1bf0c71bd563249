"""The words of the language: one row each, with arity, meaning on tensors and LaTeX.

A word's meaning is written with tensor methods only, so it holds for 0-dim tensors (scalars) and
for tensors of any shape, with torch's NaN, signed zero and infinity. How a lowering prints a word
is that lowering's business; a test demands an entry for every pair of word and lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

WordSort = Literal["arithmetic", "comparison", "logic", "function", "fact"]


@dataclass(frozen=True)
class Word:
    """One word: `meaning` takes tensors (truth: a bool tensor); LaTeX has `{0}`, `{1}`."""

    name: str
    arity: int
    sort: WordSort
    meaning: Callable[..., Any]
    latex: str


def _power(a: Any, b: Any) -> Any:
    """A number as the exponent is a number, for which torch knows roots: 0.5 is sqrt."""
    return a ** (b if b.ndim else b.item())


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return x.clamp(low, high)


_ROWS = (
    Word("+", 2, "arithmetic", lambda a, b: a + b, "{0} + {1}"),
    Word("-", 2, "arithmetic", lambda a, b: a - b, "{0} - {1}"),
    Word("*", 2, "arithmetic", lambda a, b: a * b, "{0} {1}"),
    Word("/", 2, "arithmetic", lambda a, b: a / b, r"\frac{{{0}}}{{{1}}}"),
    Word("**", 2, "arithmetic", _power, "{0}^{{{1}}}"),
    Word("%", 2, "arithmetic", lambda a, b: a % b, r"{0} \bmod {1}"),
    Word("neg", 1, "arithmetic", lambda a: -a, "-{0}"),
    Word("<", 2, "comparison", lambda a, b: a < b, "{0} < {1}"),
    Word("<=", 2, "comparison", lambda a, b: a <= b, r"{0} \le {1}"),
    Word(">", 2, "comparison", lambda a, b: a > b, "{0} > {1}"),
    Word(">=", 2, "comparison", lambda a, b: a >= b, r"{0} \ge {1}"),
    Word("==", 2, "comparison", lambda a, b: a == b, "{0} = {1}"),
    Word("!=", 2, "comparison", lambda a, b: a != b, r"{0} \ne {1}"),
    Word("and", 2, "logic", lambda a, b: a & b, r"{0} \wedge {1}"),
    Word("or", 2, "logic", lambda a, b: a | b, r"{0} \vee {1}"),
    Word("not", 1, "logic", lambda a: ~a, r"\neg {0}"),
    Word("sqrt", 1, "function", lambda x: x.sqrt(), r"\sqrt{{{0}}}"),
    Word("exp", 1, "function", lambda x: x.exp(), r"e^{{{0}}}"),
    Word("log", 1, "function", lambda x: x.log(), r"\log {0}"),
    Word("abs", 1, "function", lambda x: x.abs(), r"\left|{0}\right|"),
    Word("sign", 1, "function", lambda x: x.sign(), r"\operatorname{{sign}}({0})"),
    Word("maximum", 2, "function", lambda a, b: a.maximum(b), r"\max({0}, {1})"),
    Word("minimum", 2, "function", lambda a, b: a.minimum(b), r"\min({0}, {1})"),
    Word(
        "where",
        3,
        "function",
        lambda condition, a, b: a.where(condition, b),
        r"({0} \;?\; {1} : {2})",
    ),
    Word("clamp", 3, "function", _clamp, r"\operatorname{{clamp}}({0}, {1}, {2})"),
    Word("lerp", 3, "function", _lerp, r"\operatorname{{lerp}}({0}, {1}, {2})"),
    # Facts have no arithmetic: the runtime knows them, the evaluator is told them.
    Word("truth", 1, "fact", lambda x: x != 0, "{0}"),
    Word("item", 2, "fact", lambda values, i: values[i], "{0}_{{{1}}}"),
    Word("is_none", 1, "fact", lambda x: x is None, r"{0} = \varnothing"),
    Word("copy", 1, "fact", lambda x: x.clone(), "{0}"),
    Word("fresh", 1, "fact", lambda x: x, r"{0} \text{{ is new}}"),
)

WORDS: dict[str, Word] = {word.name: word for word in _ROWS}
FUNCTIONS: tuple[str, ...] = tuple(w.name for w in _ROWS if w.sort == "function")
"""What a spec may call by name, besides the facts."""

PRECEDENCE = {
    "or": 1,
    "and": 2,
    "not": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "==": 4,
    "!=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
    "neg": 7,
    "**": 8,
}
"""How tightly an operator binds, as in Python; names and calls bind tightest, at `ATOM`."""

ATOM = 9
