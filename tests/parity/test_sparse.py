"""Sparse gradients: torch's result where torch has one, else torch's error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity.cases import EVERY, Case
from parity.classes import CLOSURE, INFOS, NAMES, SPARSE, has
from parity.trajectories import BOUND, error
from torch import Tensor

SGD = [
    Case("SGD", options)
    for options in (
        {"lr": 0.1},
        {"lr": 0.1, "maximize": True},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"lr": torch.tensor(0.1, dtype=torch.float64)},
    )
]
WAYS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}]


def sparse(rows: list[int], seed: int) -> Tensor:
    """Some rows of a 6x3 gradient; a row that is named twice counts twice."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(len(rows), 3, generator=generator, dtype=torch.float64)
    return torch.sparse_coo_tensor(
        torch.tensor([rows]), numbers, (6, 3), check_invariants=True, is_coalesced=False
    )


def trained(make: Any) -> tuple[Tensor, Tensor]:
    """Two parameters in one group: with sparse gradients, and with dense ones."""
    table = torch.nn.Parameter(torch.ones(6, 3, dtype=torch.float64))
    dense = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = make([table, dense])
    for step, rows in enumerate([[0, 2, 2], [5], [], [1, 0, 4, 4, 1]]):
        table.grad = sparse(rows, step)
        dense.grad = torch.full_like(dense, step - 1.5)
        optimizer.step()
    return table.detach(), dense.detach()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", SGD, ids=str)
def test_sgd(case: Case, way: dict[str, Any]) -> None:
    ours = trained(lambda params: case.ours(params, **way))
    theirs = trained(case.theirs)

    assert [error(a, b) <= BOUND for a, b in zip(ours, theirs, strict=True)] == [True, True]


def test_rows_without_a_gradient_stay_to_the_last_bit() -> None:
    table = torch.nn.Parameter(torch.randn(6, 3, dtype=torch.float64))
    before = table.detach().clone()
    table.grad = sparse([0, 2, 2], 1)

    SGD[0].ours([table]).step()

    assert (table != before).any(1).tolist() == [True, False, True, False, False, False]


def test_a_sparse_embedding_trains() -> None:
    finals = []
    for make in (SGD[0].ours, SGD[0].theirs):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 4, sparse=True, dtype=torch.float64)
        optimizer = make(embedding.parameters())
        for step in range(5):
            embedding(torch.tensor([step, 3, 3])).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        finals.append(embedding.weight.detach())

    assert error(*finals) <= BOUND


@pytest.mark.parametrize("way", [*WAYS, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*SPARSE, *CLOSURE)])
def test_errors_are_torchs(name: str, way: dict[str, Any]) -> None:
    """Torch's classes that are never fused say it as they are."""
    takes_them = INFOS[name].supports_sparse
    if takes_them and "fused" not in way:
        pytest.skip("torch takes them")
    case = Case(name, EVERY[name].options if not takes_them else {})
    theirs = {flag: value for flag, value in way.items() if has(name, flag)}
    messages = []
    for make, options in ((case.ours, way), (case.theirs, theirs)):
        param = torch.nn.Parameter(torch.ones(6, 3, dtype=torch.float64))
        param.grad = sparse([1], 0)
        with pytest.raises(RuntimeError) as caught:
            make([param], **options).step()
        messages.append(str(caught.value))
        assert torch.equal(param, torch.ones_like(param))

    assert messages[0] == messages[1]
