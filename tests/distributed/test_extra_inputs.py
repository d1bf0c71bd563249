"""Test that shards with extra inputs step as in one process, also by rules with sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import PLACED_SHAPES, difference, shard
from torch import Tensor, distributed, nn

import optgen
from optgen.spec import Spec

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

ELEMENTWISE_RULE = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def Elements(p, g, t, h=given("hessian"), /, m=state("m"), *, lr=hyper(0.1, ge=0)):
    """A rule with an input that may be absent."""
    if given(h):
        m = 0.5 * m + g * h
    else:
        m = 0.5 * m + g
    p = p - lr * m / t
'''
RULE_WITH_SUMS = ELEMENTWISE_RULE.replace("Elements", "Sums").replace(
    "g * h", "g * h / (1 + rms(h))"
)


def _optimizers(text: str) -> tuple[list[Any], list[Any]]:
    """Return sharded and whole parameters, and an optimizer of each."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in PLACED_SHAPES]
    alone = [nn.Parameter(value.clone()) for value in drawn]
    sharded = [
        nn.Parameter(shard(value, placement, mesh))
        for value, (_, placement) in zip(drawn, PLACED_SHAPES, strict=True)
    ]
    name = text.partition("def ")[2].partition("(")[0]
    cls = optgen.load(Spec(name, text, f"{name}.py", 1))
    return [sharded, alone], [cls(sharded), cls(alone)]


def _shard_all(tensors: list[Tensor]) -> list[Tensor]:
    mesh = distributed.init_device_mesh("cpu", (2,))
    pairs = zip(tensors, PLACED_SHAPES, strict=True)
    return [shard(tensor, placement, mesh) for tensor, (_, placement) in pairs]


def _difference_after_training(rank: int, text: str, lowering: str) -> float:
    """Return the difference between shards and one process."""
    (sharded, alone), (ours, reference) = _optimizers(text)
    for step in range(4):
        for param in alone:
            param.grad = torch.cos(param.detach() * (step + 1))
        for param, grad in zip(sharded, _shard_all([p.grad for p in alone]), strict=True):
            param.grad = grad
        whole_inputs: list[Any] = [torch.sin(param.detach() * step) for param in alone]
        inputs: list[Any] = list(_shard_all(whole_inputs))
        for index in range(len(alone)):
            if (step + index) % 3 == 0:
                whole_inputs[index] = inputs[index] = None
        with optgen.use_lowering(lowering):
            ours.step(hessian=inputs)
            reference.step(hessian=whole_inputs)
    pairs = zip(sharded, alone, strict=True)
    return max(difference(own.detach(), whole.detach()) for own, whole in pairs)


@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
@pytest.mark.parametrize("text", [ELEMENTWISE_RULE, RULE_WITH_SUMS], ids=["elements", "sums"])
def test_shards_follow_one_process(text: str, lowering: str) -> None:
    assert max(pair.run(_difference_after_training, text, lowering)) < 1e-12


def _errors_of_wrong_inputs(rank: int) -> list[str]:
    (sharded, _), (ours, _) = _optimizers(ELEMENTWISE_RULE)
    messages = []
    nothing: list[Any] = [None] * len(sharded)
    plain = [torch.zeros(PLACED_SHAPES[0][0], dtype=torch.float64), *nothing[1:]]
    zeros = _shard_all([torch.zeros(s, dtype=torch.float64) for s, _ in PLACED_SHAPES])[0]
    replicated = [zeros.redistribute(placements=[distributed.tensor.Replicate()]), *nothing[1:]]
    of_other_shape = [*nothing[:7], sharded[0], *nothing[8:]]
    for inputs in (plain, replicated, of_other_shape):
        try:
            ours.step(hessian=inputs)
        except (TypeError, ValueError) as error:
            messages.append(str(error))
    return messages


def test_inputs_that_are_not_sharded_as_their_parameter_are_refused() -> None:
    for messages in pair.run(_errors_of_wrong_inputs):
        assert messages == [
            "hessian[0] is no DTensor, but its parameter is a DTensor",
            "hessian[0] is not sharded as its parameter is: redistribute it first",
            "hessian[7] has the shape (8, 4), but its parameter (4, 3)",
        ]


def _error_if_rank_1_hands_too_few_inputs(rank: int) -> str:
    (sharded, _), (ours, _) = _optimizers(RULE_WITH_SUMS)
    for param in sharded:
        param.grad = torch.ones_like(param)
    nothing: list[Any] = [None] * len(sharded)
    try:
        ours.step(hessian=nothing[rank:])
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def test_a_wrong_input_on_one_rank_is_an_error_on_both() -> None:
    first, second = pair.run(_error_if_rank_1_hands_too_few_inputs)

    assert "another rank could not take this step" in first
    assert second == "hessian has 8 entries for 9 parameters"


def _error_if_only_rank_1_has_inputs(rank: int, default_dtype: torch.dtype) -> str:
    """Return the error of a step, in a program with this default dtype."""
    (sharded, alone), (ours, _) = _optimizers(RULE_WITH_SUMS)
    for param in sharded:
        param.grad = torch.ones_like(param)
    inputs = _shard_all([torch.ones_like(param).detach() for param in alone]) if rank else None
    torch.set_default_dtype(default_dtype)
    try:
        ours.step(hessian=inputs)
    except RuntimeError as error:
        return str(error)
    finally:
        torch.set_default_dtype(torch.float32)
    return ""


@pytest.mark.parametrize("default_dtype", [torch.float32, torch.float16])
def test_inputs_on_one_rank_only_are_refused(default_dtype: torch.dtype) -> None:
    """A rule that sums over an input needs all shards of it, so all ranks must have it."""
    messages = pair.run(_error_if_only_rank_1_has_inputs, default_dtype)
    assert all("about to take different steps" in each for each in messages)


WITH_A_NUMBER = ELEMENTWISE_RULE.replace("Elements", "Numbers").replace(
    'h=given("hessian")', 'h=given("hessian"), loss=given("loss", shape=())'
)
WITH_ROWS = WITH_A_NUMBER.replace("Numbers", "Rows").replace(
    'given("hessian")', 'given("hessian", shape="row")'
)
WITH_A_NUMBER = WITH_A_NUMBER.replace("/ t", "/ t * loss")
WITH_ROWS = WITH_ROWS.replace("    if given", '    require(ndim(p) >= 2, "{shape}")\n    if given')
WITH_ROWS = WITH_ROWS.replace("/ t", "/ t * loss")


def _difference_with_a_number(rank: int) -> float:
    (sharded, alone), (ours, reference) = _optimizers(WITH_A_NUMBER)
    for step in range(3):
        for param in alone:
            param.grad = torch.cos(param.detach() * (step + 1))
        for param, grad in zip(sharded, _shard_all([p.grad for p in alone]), strict=True):
            param.grad = grad
        ours.step(loss=0.5 + step)
        reference.step(loss=torch.tensor(0.5 + step))
    pairs = zip(sharded, alone, strict=True)
    return max(difference(own.detach(), whole.detach()) for own, whole in pairs)


def _error_of_rows(rank: int) -> str:
    mesh = distributed.init_device_mesh("cpu", (2,))
    param = nn.Parameter(shard(torch.ones(4, 3), distributed.tensor.Shard(0), mesh))
    param.grad = torch.ones_like(param)
    optimizer = optgen.load(Spec("Rows", WITH_ROWS, "Rows.py", 1))([param])
    try:
        optimizer.step(hessian=[torch.ones(4, 1)], loss=1.0)
    except TypeError as error:
        return str(error)
    return ""


def test_shards_take_a_number() -> None:
    assert max(pair.run(_difference_with_a_number)) < 1e-12


def test_shards_refuse_inputs_of_another_shape() -> None:
    for message in pair.run(_error_of_rows):
        assert "hessian[0] has another shape than its parameter, which is a DTensor" in message
