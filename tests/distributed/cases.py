"""Classes, placements and gradients for tests that train sharded parameters on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from distributed.shards import difference as difference
from distributed.shards import shard as shard
from parity.cases import CASE_OF_CLASS, CASES, OWN_OPTIONS, Case
from torch import Tensor
from torch.distributed.tensor import Placement, Replicate, Shard

ELEMENTWISE = (
    *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)
"""Classes with elementwise rules: two ranks compute the same bits as one process."""

PLACED_SHAPES: tuple[tuple[tuple[int, ...], Placement | None], ...] = (
    ((8, 4), Shard(0)),
    ((5, 3), Shard(0)),  # unevenly
    ((1, 6), Shard(0)),  # one rank has nothing
    ((3, 5), Shard(1)),
    ((7,), Shard(0)),
    ((2, 3), Replicate()),
    ((), Replicate()),
    ((4, 3), None),  # a plain tensor among DTensors
    ((33, 70), Shard(0)),
)
"""Shapes, and their placements on two ranks."""


def cases(name: str) -> list[Case]:
    """Return the cases of a class that turn on every flag and state, without tensor options."""
    cases_of_class = [
        case for case in CASES if case.name == name and case.options in OWN_OPTIONS[name]
    ]
    without_tensors = [case for case in cases_of_class if not _has_tensors(case.options)]
    return [CASE_OF_CLASS[name], *without_tensors]


def _has_tensors(options: Any) -> bool:
    values = (v for value in options.values() for v in (value if type(value) is tuple else [value]))
    return any(isinstance(value, Tensor) for value in values)


def gradients(step: int, dtype: torch.dtype) -> Iterator[Tensor | None]:
    """Yield a gradient or None for each shape. They depend only on the step."""
    generator = torch.Generator().manual_seed(1000 + step)
    for index, (shape, _) in enumerate(PLACED_SHAPES):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        if dtype.is_complex:
            grad = torch.complex(grad, grad.flip(0) if grad.dim() else grad)
        yield None if (step + index) % 5 == 4 else grad.to(dtype)
