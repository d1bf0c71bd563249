"""Test that extra inputs of sharded parameters give the step of one process, with sums too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import SHARDED, difference, shard
from torch import Tensor, distributed, nn

import optgen
from optgen.spec import Spec

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

ELEMENTS = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def Elements(p, g, t, h=given("hessian"), /, m=state("m"), *, lr=hyper(0.1, ge=0)):
    """An input that may be absent."""
    if given(h):
        m = 0.5 * m + g * h
    else:
        m = 0.5 * m + g
    p = p - lr * m / t
'''
SUMS = ELEMENTS.replace("Elements", "Sums").replace("g * h", "g * h / (1 + rms(h))")


def _optimizers(text: str) -> tuple[list[Any], list[Any]]:
    """Return the parameters, sharded and whole, and the optimizers of each."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in SHARDED]
    alone = [nn.Parameter(value.clone()) for value in drawn]
    sharded = [
        nn.Parameter(shard(value, placement, mesh))
        for value, (_, placement) in zip(drawn, SHARDED, strict=True)
    ]
    name = text.partition("def ")[2].partition("(")[0]
    cls = optgen.load(Spec(name, text, f"{name}.py", 1))
    return [sharded, alone], [cls(sharded), cls(alone)]


def _sharded(tensors: list[Tensor]) -> list[Tensor]:
    mesh = distributed.init_device_mesh("cpu", (2,))
    pairs = zip(tensors, SHARDED, strict=True)
    return [shard(tensor, placement, mesh) for tensor, (_, placement) in pairs]


def _train(rank: int, text: str, lowering: str) -> float:
    """Return the difference between shards and one process."""
    (sharded, alone), (ours, reference) = _optimizers(text)
    for step in range(4):
        for param in alone:
            param.grad = torch.cos(param.detach() * (step + 1))
        for param, grad in zip(sharded, _sharded([p.grad for p in alone]), strict=True):
            param.grad = grad
        handed = [torch.sin(param.detach() * step) for param in alone]
        chosen = [(step + i) % 3 > 0 for i in range(len(alone))]
        both = [
            [tensor if is_given else None for tensor, is_given in zip(tensors, chosen, strict=True)]
            for tensors in (_sharded(handed), handed)
        ]
        with optgen.use_lowering(lowering):
            ours.step(hessian=both[0])
            reference.step(hessian=both[1])
    pairs = zip(sharded, alone, strict=True)
    return max(difference(own.detach(), whole.detach()) for own, whole in pairs)


@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
@pytest.mark.parametrize("text", [ELEMENTS, SUMS], ids=["elements", "sums"])
def test_shards_follow_one_process(text: str, lowering: str) -> None:
    assert max(pair.run(_train, text, lowering)) < 1e-12


def _refused(rank: int) -> list[str]:
    (sharded, _), (ours, _) = _optimizers(ELEMENTS)
    messages = []
    nothing: list[Any] = [None] * len(sharded)
    wrong = [torch.zeros(SHARDED[0][0], dtype=torch.float64), *nothing[1:]]
    other = [_sharded([torch.zeros(s, dtype=torch.float64) for s, _ in SHARDED])[0], *nothing[1:]]
    other[0] = other[0].redistribute(placements=[distributed.tensor.Replicate()])
    for handed in (wrong, other, [*nothing[:7], sharded[0], *nothing[8:]]):
        try:
            ours.step(hessian=handed)
        except (TypeError, ValueError) as error:
            messages.append(str(error))
    return messages


def test_an_input_is_sharded_as_its_parameter() -> None:
    for messages in pair.run(_refused):
        assert messages == [
            "hessian[0] is no DTensor, but its parameter is a DTensor",
            "hessian[0] is not sharded as its parameter is: redistribute it first",
            "hessian[7] has the shape (8, 4), but its parameter (4, 3)",
        ]


def _one_is_wrong(rank: int) -> str:
    (sharded, _), (ours, _) = _optimizers(SUMS)
    for param in sharded:
        param.grad = torch.ones_like(param)
    nothing: list[Any] = [None] * len(sharded)
    try:
        ours.step(hessian=nothing[rank:])
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def test_a_wrong_input_on_one_rank_is_an_error_on_both() -> None:
    first, second = pair.run(_one_is_wrong)

    assert "another rank could not take this step" in first
    assert second == "hessian has 8 entries for 9 parameters"


def _differ(rank: int, default_dtype: torch.dtype) -> str:
    """Hand over an input on one rank only, in a program with a default dtype."""
    (sharded, alone), (ours, _) = _optimizers(SUMS)
    for param in sharded:
        param.grad = torch.ones_like(param)
    handed = _sharded([torch.ones_like(param).detach() for param in alone]) if rank else None
    torch.set_default_dtype(default_dtype)
    try:
        ours.step(hessian=handed)
    except RuntimeError as error:
        return str(error)
    finally:
        torch.set_default_dtype(torch.float32)
    return ""


@pytest.mark.parametrize("default_dtype", [torch.float32, torch.float16])
def test_ranks_that_differ_are_refused(default_dtype: torch.dtype) -> None:
    """A sum over an input is the sum of all its shards, so all ranks must have one."""
    messages = pair.run(_differ, default_dtype)
    assert all("about to take different steps" in each for each in messages)
