"""The classes that are trained on two ranks, and parameters sharded over two ranks in every way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from distributed.shards import difference as difference
from distributed.shards import shard as shard
from parity.cases import CASE_OF_CLASS, CASES, OWN, Case
from torch import Tensor
from torch.distributed.tensor import Placement, Replicate, Shard

_ELEMENTWISE = "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD"
TOLERANCE: dict[str, float] = dict.fromkeys(_ELEMENTWISE.split(), 0.0)
"""Bounds on the difference between two ranks and one process. Elementwise rules have equal bits."""

SHARDED: tuple[tuple[tuple[int, ...], Placement | None], ...] = (
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
    """Return the cases of a class that turn on every flag and state; no argument is a tensor."""
    of_name = [case for case in CASES if case.name == name and case.options in OWN[name]]
    return [CASE_OF_CLASS[name], *(case for case in of_name if not _tensors(case.options))]


def _tensors(options: Any) -> bool:
    values = (v for value in options.values() for v in (value if type(value) is tuple else [value]))
    return any(isinstance(value, Tensor) for value in values)


def gradients(step: int, dtype: torch.dtype) -> Iterator[Tensor | None]:
    """Yield a gradient for each shape, which depends on the step only; some are None."""
    generator = torch.Generator().manual_seed(1000 + step)
    for index, (shape, _) in enumerate(SHARDED):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        if dtype.is_complex:
            grad = torch.complex(grad, grad.flip(0) if grad.dim() else grad)
        yield None if (step + index) % 5 == 4 else grad.to(dtype)
