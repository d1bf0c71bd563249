"""Test every op with NaN, ±0 and inf against torch's functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen.ir.meanings import MEANINGS
from optgen.ir.ops import (
    FUNCTIONS,
    LINEAR_ALGEBRA,
    MATRIX_OPS,
    OPS,
    PROPERTIES,
    RANDOM_OPS,
    REDUCTIONS,
    STORAGE_OPS,
    WIDE_OPS,
)

nan, inf = float("nan"), float("inf")
EDGES = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.5, 5e-324, 1e308], dtype=torch.float64)

REFERENCES: dict[str, Callable[..., Tensor]] = {
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
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan2": torch.atan2,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "abs": torch.abs,
    "sign": torch.sign,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": torch.where,
    "clamp": torch.clamp,
    "lerp": lambda a, b, w: a + w * (b - a),
}
OPS_WITHOUT_REFERENCE = {"truth", "item", "is_none", "copy", "fresh", "within"}
REDUCTION_REFERENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "row_sum": lambda x: torch.sum(x, -1, keepdim=True),
    "col_sum": lambda x: torch.sum(x, -2, keepdim=True),
    "row_mean": lambda x: torch.mean(x, -1, keepdim=True),
    "col_mean": lambda x: torch.mean(x, -2, keepdim=True),
    "row_norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "col_norm": lambda x: torch.linalg.vector_norm(x, dim=-2, keepdim=True),
    "row_rms": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True) / x.size(-1) ** 0.5,
    "col_rms": lambda x: torch.linalg.vector_norm(x, dim=-2, keepdim=True) / x.size(-2) ** 0.5,
    "row_max_abs": lambda x: torch.linalg.vector_norm(x, ord=inf, dim=-1, keepdim=True),
    "col_max_abs": lambda x: torch.linalg.vector_norm(x, ord=inf, dim=-2, keepdim=True),
    "sum": torch.sum,
    "mean": torch.mean,
    "norm": torch.linalg.vector_norm,
    "rms": lambda x: torch.linalg.vector_norm(x) / x.numel() ** 0.5,
    "max_abs": lambda x: torch.linalg.vector_norm(x, ord=inf),
}


def operands(word: str) -> tuple[Tensor, ...]:
    """Return every combination of edge values for an op's arguments."""
    edges: list[Any] = [EDGES] * OPS[word].arity
    if OPS[word].category == "logic":
        edges = [torch.tensor([True, False])] * len(edges)
    if word == "where":
        edges[0] = torch.tensor([True, False])
    columns = zip(*itertools.product(*(e.tolist() for e in edges)), strict=True)
    return tuple(torch.tensor(c, dtype=e.dtype) for c, e in zip(columns, edges, strict=True))


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if expected.is_floating_point():
        is_number = ~expected.isnan()
        assert torch.equal(found.signbit()[is_number], expected.signbit()[is_number])


@pytest.mark.parametrize("word", REFERENCES)
def test_an_op_means_what_torch_computes(word: str) -> None:
    args = operands(word)
    found = MEANINGS[word](*args)
    assert_same_bits(found, REFERENCES[word](*args))
    assert_same_bits(MEANINGS[word](*(a[1] for a in args)), found[1])


def some_numbers(dtype: torch.dtype) -> Tensor:
    """Return 20,000 numbers. On an Intel CPU torch.sqrt rounds some 140 of their roots wrongly."""
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.randint(-20, 20, (20_000,), generator=generator)
    return torch.ldexp(torch.rand(20_000, dtype=dtype, generator=generator), magnitudes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_root_is_correctly_rounded(dtype: torch.dtype) -> None:
    x = some_numbers(dtype)
    expected = torch.tensor([math.sqrt(v) for v in x.tolist()], dtype=torch.float64).to(dtype)
    assert torch.equal(MEANINGS["sqrt"](x), expected)
    assert torch.equal(MEANINGS["**"](x, torch.tensor(0.5)), expected)
    squares = [(v * v).item() for v in x[:500]]
    norms = torch.tensor([math.sqrt(v) for v in squares], dtype=torch.float64).to(dtype)
    assert torch.equal(torch.stack([MEANINGS["norm"](v) for v in x[:500]]), norms)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("word", ["exp", "log", "tanh", "sin", "cos", "atan2", "**"])
def test_a_function_of_scalars_is_the_c_librarys(word: str, dtype: torch.dtype) -> None:
    function = math.pow if word == "**" else getattr(math, word)
    columns = [some_numbers(dtype)[i : 500 + i] / 2**12 for i in range(OPS[word].arity)]
    for operands in zip(*columns, strict=True):
        expected = torch.tensor(function(*(x.item() for x in operands)), dtype=dtype)
        assert torch.equal(MEANINGS[word](*operands), expected)


@pytest.mark.parametrize("word", REDUCTION_REFERENCES)
@pytest.mark.parametrize("element", [0.0, nan, inf, -inf, 1e200])
def test_a_reduction_means_what_torch_computes(word: str, element: float) -> None:
    x = torch.linspace(-2, 3, 24, dtype=torch.float64).reshape(2, 3, 4)
    x[1, 2, 0] = element
    if element == 1e200 and word.endswith(("norm", "rms")):
        x = x * 1e-200  # squares leave the range of float64
    found = MEANINGS[word](x)
    torch.testing.assert_close(
        found, REDUCTION_REFERENCES[word](x), rtol=1e-14, atol=0, equal_nan=True
    )


def test_sums_and_maxima_of_nothing_are_zero() -> None:
    empty = torch.zeros(0, 3)
    assert [MEANINGS[w](empty).item() for w in ("sum", "norm", "max_abs")] == [0, 0, 0]
    assert MEANINGS["col_max_abs"](empty).tolist() == [[0, 0, 0]]
    assert MEANINGS["row_max_abs"](empty.mT).tolist() == [[0], [0], [0]]
    assert MEANINGS["row_max_abs"](empty).shape == (0, 1)
    assert MEANINGS["col_max_abs"](empty.mT).shape == (1, 0)


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5), (2, 3, 6), (1, 4)])
def test_orthogonalize_drives_singular_values_to_one(shape: tuple[int, ...]) -> None:
    """The coefficients are those of the cubic iteration, which converges."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    numbers = (torch.tensor(1.5), torch.tensor(-0.5), torch.tensor(0.0))
    found = MEANINGS["orthogonalize"](x, numbers, torch.tensor(60.0), torch.tensor(1e-7))
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    torch.testing.assert_close(found, u @ v, rtol=0, atol=1e-12)


WIDE_REFERENCES: dict[str, Callable[..., float]] = {
    "group_sum": math.fsum,
    "group_max": max,
    "all_sum": math.fsum,
    "all_max": max,
}


@pytest.mark.parametrize("word", WIDE_REFERENCES)
def test_wide_reductions_do_not_depend_on_the_order(word: str) -> None:
    """The order of the numbers changes no bit, and a NaN makes the result NaN."""
    numbers = torch.randn(50, dtype=torch.float64).exp()
    meaning = MEANINGS[word]
    found = {meaning(*numbers[torch.randperm(50)]).item() for _ in range(8)}
    assert len(found) == 1
    assert found.pop() == pytest.approx(WIDE_REFERENCES[word](numbers.tolist()), rel=1e-15)
    assert meaning(*numbers, torch.tensor(nan)).isnan()


def test_every_op_is_tested() -> None:
    others = {*OPS_WITHOUT_REFERENCE, *PROPERTIES, *STORAGE_OPS, *RANDOM_OPS}
    on_tensors = {*REDUCTION_REFERENCES, *WIDE_REFERENCES, *MATRIX_OPS, *LINEAR_ALGEBRA}
    assert set(WIDE_OPS) == set(WIDE_REFERENCES)
    assert set(OPS) == {*REFERENCES, *on_tensors, *others}
    assert set(REDUCTIONS) == set(REDUCTION_REFERENCES)
    assert set(FUNCTIONS) == {w for w in REFERENCES if OPS[w].category == "function"}


@pytest.mark.parametrize("word", OPS)
def test_latex_has_a_place_for_every_argument(word: str) -> None:
    op = OPS[word]
    placeholders = [f"x{i}x" for i in range(op.arity)]
    # The dtype of a rounding is not printed.
    printed = placeholders[:1] if word in STORAGE_OPS else placeholders
    assert all(placeholder in op.latex.format(*placeholders) for placeholder in printed)
