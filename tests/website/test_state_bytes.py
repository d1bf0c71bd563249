"""Test that pages state the bytes that the states of an optimizer really take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import optgen
from optgen import modifiers
from optgen.ir.algorithm import Algorithm
from website.adoption import takes_vectors
from website.entries import SPECS, Entry, entries
from website.precisions import PRECISIONS, in_precision
from website.state_bytes import TALL, VECTOR, WIDE, Shape, Size, total_size

SHAPES = {TALL: (96, 64), WIDE: (64, 96), VECTOR: (6144,)}
"""Parameters that are large enough for states of 8 bits, in whole blocks."""
MODIFIERS: dict[str, tuple[Any, ...]] = {
    "": (),
    'master, state_dtype("float32")': (modifiers.master, modifiers.state_dtype("float32")),
    "quantized()": (modifiers.quantized(),),
}
COMPOSED = ("adamw", "adafactor", "galore", "lion", "schedule_free_adamw", "soap")


def bytes_after_a_step(cls: Any, shape: tuple[int, ...], dtype: str, algorithm: Algorithm) -> int:
    """Return the bytes of the states that one parameter has after a step."""
    param = torch.nn.Parameter(torch.ones(shape, dtype=getattr(torch, dtype)))
    grad = torch.ones_like(param) / 8
    param.grad = grad.to_sparse(1) if algorithm.gradient == "sparse_only" else grad
    options = {"max_lr": 1e-3} if algorithm.module == "adamc" else {}
    optimizer = cls([param], **options)
    with optgen.use_lowering("foreach"):
        optimizer.step(**{state.step_argument: [grad] for state in algorithm.extra_inputs()})
    return sum(map(bytes_of, optimizer.state[param].values()))


def bytes_of(value: object) -> int:
    if not isinstance(value, Tensor):
        return 0
    if hasattr(value, "scales"):
        return int(value.codes.nbytes + value.scales.nbytes)
    return value.nbytes


def stated_bytes(algorithm: Algorithm, shape: Shape, dtype: str) -> float:
    """Return the bytes that the page states for a parameter."""
    size = total_size(algorithm, shape, dtype)
    rows, cols = SHAPES[shape] if shape.matrix else (1, *SHAPES[shape])
    rank = algorithm.hyper("rank")
    rank_value = rank.default if rank and isinstance(rank.default, int | float) else 0
    return size.at(rows, cols, int(rank_value))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_stated_bytes_are_those_of_created_states(entry: Entry, dtype: str) -> None:
    for shape in SHAPES if takes_vectors(entry) else (TALL, WIDE):
        found = bytes_after_a_step(entry.cls, SHAPES[shape], dtype, entry.algorithm)

        assert found == stated_bytes(entry.algorithm, shape, dtype)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(name, precision, id=f"{name}-{precision.title}")
        for name in COMPOSED
        for precision in PRECISIONS[2:]
        if (name, precision.modifiers) != ("galore", "quantized()")  # refused: see below
    ],
)
def test_stated_bytes_in_other_precisions_are_those_of_created_states(
    name: str, precision: Any
) -> None:
    (entry,) = (each for each in entries() if each.name == name)
    algorithm = in_precision(entry, precision)
    assert isinstance(algorithm, Algorithm)
    cls = optgen.compose(SPECS / f"{entry.name}.py", *MODIFIERS[precision.modifiers])

    for shape in SHAPES if takes_vectors(entry) else (TALL, WIDE):
        found = bytes_after_a_step(cls, SHAPES[shape], precision.dtype, entry.algorithm)

        assert found == stated_bytes(algorithm, shape, precision.dtype)


def test_a_precision_that_an_optimizer_refuses_has_a_reason() -> None:
    (galore,) = (each for each in entries() if each.name == "galore")
    assert "none takes 8 bits" in str(in_precision(galore, PRECISIONS[3]))
    (kahan,) = (each for each in entries() if each.name == "kahan_adamw")

    assert "rounds the parameter itself" in str(in_precision(kahan, PRECISIONS[2]))


def test_a_size_is_shown_as_a_formula() -> None:
    size = Size({(1, 1, 0): 8, (2, 0, 0): 4.5, (0, 1, 1): 2, (0, 0, 0): 4})

    assert size.formula() == r"4.50\,m^2 + 8\,mn + 2\,nr + 4"
    assert size.at(3, 2, 5) == 8 * 6 + 4.5 * 9 + 2 * 2 * 2 + 4  # the rank is at most 2
    assert size.bytes_per_element is None
    assert Size({(1, 1, 0): 8, (0, 0, 0): 4}).bytes_per_element == 8
