"""Test that chained optimizers repeat cached steps, and that these step together or not at all."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optgen import optim
from optgen.optim import ChainedOptimizer
from optgen.runtime import take_step


def parameters() -> list[Tensor]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,), (), (2, 2))]


def chain_of(*names: str) -> tuple[ChainedOptimizer, list[list[Tensor]]]:
    params = [parameters() for _ in names]
    pairs = zip(names, params, strict=True)
    return ChainedOptimizer([getattr(optim, name)(each) for name, each in pairs]), params


def give_gradients(params: list[list[Tensor]], step: int) -> None:
    torch.manual_seed(step)
    for param in (param for each in params for param in each):
        param.grad = torch.randn_like(param)


def refuse_to_gather(*_: Any) -> None:
    raise AssertionError("the step gathers its batches")


@pytest.mark.parametrize("names", [("Lion", "AdamW"), ("SGD", "Adam", "Lion"), ("Adafactor",) * 2])
def test_all_members_repeat_their_cached_steps(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    chained, params = chain_of(*names)
    _, expected = chain_of(*names)
    alone = [getattr(optim, name)(each) for name, each in zip(names, expected, strict=True)]
    for step in range(5):
        if step == 2:
            monkeypatch.setattr(take_step, "gather_batches", refuse_to_gather)
        if step == 3:  # the next lists are read anew
            params[0][0].data = params[0][0].data.clone()
        give_gradients(params, step)
        give_gradients(expected, step)
        chained.step()
        for optimizer in alone:
            optimizer.step()

    for ours, theirs in zip(params, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))


def wrong_shape(params: list[Tensor]) -> None:
    params[1].grad = None
    params[1].data = params[1].data[:3]
    params[1].grad = torch.ones(3)


def wrong_dtype(params: list[Tensor]) -> None:
    assert params[1].grad is not None
    params[1].grad.data = params[1].grad.long()


def shrunk_storage(params: list[Tensor]) -> None:
    params[1].untyped_storage().resize_(4)


@pytest.mark.parametrize("damage", [wrong_shape, wrong_dtype, shrunk_storage])
@pytest.mark.parametrize("member", [0, 1, 2])
def test_a_tensor_that_a_member_refuses_stops_all(damage: Any, member: int) -> None:
    """The first members have checked their cached steps; none of them may have run."""
    chained, params = chain_of("Lion", "AdamW", "Adagrad")
    for step in range(3):
        give_gradients(params, step)
        chained.step()
    give_gradients(params, 3)
    damage(params[member])
    others = [each for index, each in enumerate(params) if index != member]
    before, states = copy.deepcopy(others), copy.deepcopy(chained.members[0].state_dict())
    with pytest.raises((RuntimeError, NotImplementedError)):
        chained.step()

    for ours, old in zip(others, before, strict=True):
        assert all(map(torch.equal, ours, old))
    assert str(chained.members[0].state_dict()) == str(states)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_that_does_not_exist_stops_all(order: tuple[int, int], steps: int) -> None:
    """The kernel for sparse gradients finds the row only when it updates."""
    embedding, weights = nn.Parameter(torch.ones(4, 3)), parameters()
    members = [optim.SGD([embedding], lr=0.1), optim.AdamW(weights)]
    chained = ChainedOptimizer([members[index] for index in order])
    for step in range(steps + 1):
        give_gradients([weights], step)
        row = 1 if step < steps else 7
        values = torch.ones(1, 3)
        embedding.grad = torch.sparse_coo_tensor(
            torch.tensor([[1]]), values, (4, 3), check_invariants=False
        )
        if row == 7:
            embedding.grad._indices().fill_(7)
            before = copy.deepcopy([embedding, *weights])
            with pytest.raises(IndexError, match="rows 7 to 7"):
                chained.step()
            assert all(map(torch.equal, [embedding, *weights], before))
        else:
            chained.step()


def test_a_change_after_the_check_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may replace a gradient between the check and the step."""
    chained, params = chain_of("Lion", "AdamW")
    _, expected = chain_of("Lion", "AdamW")
    alone = [optim.Lion(expected[0]), optim.AdamW(expected[1])]

    def train_both(step: int) -> None:
        give_gradients(params, step)
        give_gradients(expected, step)
        if step == 2:
            expected[0][1].grad = torch.full((5,), 0.5)
        chained.step()
        for optimizer in alone:
            optimizer.step()

    train_both(0)
    train_both(1)
    cached: Any = chained.members[0]._context.cached_step  # type: ignore[attr-defined]
    check = cached.check

    def check_then_change(optimizer: Any) -> bool:
        answer: bool = check(optimizer)
        gradient = torch.full((10,), 0.5)[::2]  # not dense: the cached step refuses it
        params[0][1].grad = gradient
        return answer

    monkeypatch.setattr(cached, "check", check_then_change)
    train_both(2)

    for ours, theirs in zip(params, expected, strict=True):
        assert all(map(torch.allclose, ours, theirs))
