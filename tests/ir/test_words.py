"""Every word with NaN, ±0 and inf, as torch's functions have it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen.ir.words import FUNCTIONS, WORDS

nan, inf = float("nan"), float("inf")
EDGES = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.5, 5e-324, 1e308], dtype=torch.float64)

REFERENCE: dict[str, Callable[..., Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "**": torch.pow,
    "%": torch.remainder,
    "neg": torch.neg,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "log": torch.log,
    "abs": torch.abs,
    "sign": torch.sign,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": torch.where,
    "clamp": torch.clamp,
    "lerp": lambda a, b, w: a + w * (b - a),
}
FACTS = {"truth", "item", "is_none", "copy", "fresh"}


def operands(word: str) -> tuple[Tensor, ...]:
    """Every combination of edge values for a word's arguments."""
    edges: list[Any] = [EDGES] * WORDS[word].arity
    if WORDS[word].sort == "logic":
        edges = [torch.tensor([True, False])] * len(edges)
    if word == "where":
        edges[0] = torch.tensor([True, False])
    columns = zip(*itertools.product(*(e.tolist() for e in edges)), strict=True)
    return tuple(torch.tensor(c, dtype=e.dtype) for c, e in zip(columns, edges, strict=True))


def assert_bits(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if expected.is_floating_point():
        real = ~expected.isnan()
        assert torch.equal(found.signbit()[real], expected.signbit()[real])


@pytest.mark.parametrize("word", REFERENCE)
def test_word(word: str) -> None:
    args = operands(word)
    found = WORDS[word].meaning(*args)
    assert_bits(found, REFERENCE[word](*args))
    assert_bits(WORDS[word].meaning(*(a[1] for a in args)), found[1])


def test_every_word_has_a_row() -> None:
    assert set(WORDS) == set(REFERENCE) | FACTS
    assert set(FUNCTIONS) == {w for w in REFERENCE if WORDS[w].sort == "function"}


@pytest.mark.parametrize("word", WORDS)
def test_latex_has_a_place_for_every_argument(word: str) -> None:
    row = WORDS[word]
    marks = [f"x{i}x" for i in range(row.arity)]
    assert all(mark in row.latex.format(*marks) for mark in marks)
