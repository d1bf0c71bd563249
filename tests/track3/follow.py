"""Follow the steps of a result's specs with those in plain torch, and measure the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from track3.muons import Own, iterated
from track3.results import MATRICES, QUIET, ZERO, Group, Result

import optgen
from optgen import use_lowering

SPECS = Path(__file__).parents[1] / "specs" / "track3"
ORTHOGONALIZE = "optgen.runtime.matrix_ops.orthogonalize"


def largest_difference(result: Result, lowering: Any, only_square: bool = False) -> float:
    """Return the largest difference of an element of a parameter in any step."""
    generator = torch.Generator().manual_seed(3)

    def drawn(shape: Sequence[int], size: float) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * size

    right = [
        [drawn(shape, shape != ZERO) for shape in shapes(g, only_square)] for g in result.groups
    ]
    own: list[list[Own]] = [[{"start": p} for p in params] for params in right]
    params = [[p.clone().requires_grad_() for p in group] for group in right]
    optimizers = made(result, params)
    worst = 0.0
    for step in range(result.steps):
        for index, group in enumerate(result.groups):
            options = group.at(step / result.steps)
            (own_group,) = (x for o in optimizers for x in o.param_groups if x["index"] == index)
            own_group.update(options)
            for place, param in enumerate(params[index]):
                param.grad = drawn(param.shape, 1e-8 if param.shape == QUIET else 1.0)
                kept, before = own[index][place], right[index][place]
                after = group.step(before, param.grad.clone(), kept, options)
                right[index][place] = result.after(after, kept) if result.after else after
        with use_lowering(lowering), mock.patch(ORTHOGONALIZE, exact):
            for optimizer in optimizers:
                optimizer.step()
        for group_params, expected in zip(params, right, strict=True):
            for param, wanted in zip(group_params, expected, strict=True):
                worst = max(worst, (param.detach() - wanted).abs().max().item())
    return worst


def shapes(group: Group, only_square: bool) -> list[tuple[int, ...]]:
    """Return the shapes of a group's parameters, maybe without matrices that are not square."""
    left_out = [s for s in MATRICES if only_square and s[0] != s[1]]
    return [shape for shape in group.shapes if shape not in left_out]


def made(result: Result, params: list[list[Tensor]]) -> list[torch.optim.Optimizer]:
    """Return an optimizer for each spec of a result. Its groups know their places."""
    by_spec: dict[str, list[dict[str, Any]]] = {}
    for index, group in enumerate(result.groups):
        given = {"params": params[index], "index": index, **group.at(0.0)}
        by_spec.setdefault(group.spec or result.spec, []).append(given)
    return [optgen.load(SPECS / f"{spec}.py")(groups) for spec, groups in by_spec.items()]


def exact(tensors: list[Tensor], coefficients: Any, steps: int, eps: float) -> list[Tensor]:
    """Make matrices orthogonal in the dtype that they have."""
    assert (*coefficients, steps, eps) == (2.0, -1.5, 0.5, 12, 1)
    return [iterated(x / x.norm().clamp(min=eps)) for x in tensors]


@contextmanager
def steady_decompositions() -> Iterator[None]:
    """Let torch decompose the sum of a matrix and a fixed one.

    The first covariances of a tall or wide matrix have less than full rank. Then rounding chooses
    some of their eigenvectors, in a script as in a spec. Those of the sum do not depend on it.
    """
    eigh, qr = torch.linalg.eigh, torch.linalg.qr
    with (
        mock.patch("torch.linalg.eigh", lambda x: eigh(x + fixed(x) + fixed(x).mT)),
        mock.patch("torch.linalg.qr", lambda x: qr(x + fixed(x))),
    ):
        yield


def fixed(x: Tensor) -> Tensor:
    """Return a matrix that only depends on the size of the square matrices of a batch."""
    generator = torch.Generator().manual_seed(x.size(-1))
    return torch.randn(x.shape[-2:], generator=generator, dtype=x.dtype) * 0.1
