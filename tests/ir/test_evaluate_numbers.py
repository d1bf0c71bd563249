"""Test numbers without torch: the bits are those of the meanings on tensors."""

from __future__ import annotations

import itertools
import random
from math import inf, nan

import pytest
import torch

from optgen.ir.evaluate_numbers import PYTHON_FUNCTIONS, evaluate_numbers
from optgen.ir.meanings import MEANINGS
from optgen.ir.ops import OPS

EDGES = (0.0, -0.0, 0.5, -0.5, 1, -1, 2, 2.5, -3.5, 1e-320, 1e308, -1e308, 1000, inf, -inf, nan)
WORDS = (*PYTHON_FUNCTIONS, "<", ">=", "sign", "clamp")


def operands(word: str) -> list[tuple[float, ...]]:
    """Return edge cases, and numbers of all sizes."""
    arity, rng = OPS[word].arity, random.Random(word)
    drawn = [tuple(rng.gauss(0, 10.0**size) for _ in range(arity)) for size in range(-9, 9)]
    return [*itertools.product(EDGES, repeat=arity), *(drawn * 4)]


@pytest.mark.parametrize("word", WORDS)
def test_a_number_has_the_bits_of_the_meaning(word: str) -> None:
    for numbers in operands(word):
        tensors = [torch.tensor(number, dtype=torch.float64) for number in numbers]
        expected = MEANINGS[word](*tensors).item()
        assert repr(evaluate_numbers(word, numbers)) == repr(expected), numbers
