"""Test sparse gradients where torch has a result; test_sparse_errors.py tests torch's errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity.cases import Case
from parity.trajectories import BOUND, Run, assert_close, error
from torch import Tensor

import optgen

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad
LR = torch.tensor(0.1, dtype=torch.float64)
SGD = [
    Case("SGD", options)
    for options in (
        {"lr": 0.1},
        {"lr": 0.1, "maximize": True},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"lr": LR},
    )
]
SPARSE_ADAM = [
    Case("SparseAdam", options)
    for options in (
        {},
        {"lr": 0.1, "maximize": True},
        {"betas": (0.5, 0.6), "eps": 1e-3},
        {"lr": LR},
    )
]
ADAGRAD = [
    Case("Adagrad", options)
    for options in (
        {},
        {"lr": 0.1, "lr_decay": 0.5, "initial_accumulator_value": 0.3, "maximize": True},
        {"lr": LR, "eps": 1e-3},
    )
]
FLAGS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
Gradient = Callable[[list[int], int], Tensor]


def numbers(rows: int, seed: int, width: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


def uncoalesced(rows: list[int], seed: int) -> Tensor:
    """Return some rows of a 6x3 gradient; the values of a repeated row are added."""
    return torch.sparse_coo_tensor(
        torch.tensor([rows], dtype=torch.int64),
        numbers(len(rows), seed),
        (6, 3),
        check_invariants=True,
        is_coalesced=False,
    )


def coalesced(rows: list[int], seed: int) -> Tensor:
    return uncoalesced(rows, seed).coalesce()


def with_strides(rows: list[int], seed: int) -> Tensor:
    """Return a gradient with column-major values and strided indices."""
    spread = torch.tensor([rows, rows], dtype=torch.int64).T.contiguous().T[:1]
    values = numbers(len(rows), seed).T.contiguous().T
    return torch.sparse_coo_tensor(spread, values, (6, 3), check_invariants=True)


def with_two_indices(rows: list[int], seed: int) -> Tensor:
    """Return a gradient with an index for every element."""
    indices = torch.tensor([rows, [row % 3 for row in rows]], dtype=torch.int64)
    values = numbers(len(rows), seed)[:, 0]
    return torch.sparse_coo_tensor(indices, values, (6, 3), check_invariants=True)


GRADIENTS: list[Gradient] = [uncoalesced, coalesced, with_strides, with_two_indices]
BATCHES = [[0, 2, 2], [5], [], [1, 0, 4, 4, 1]]


def trained(
    make: Any,
    gradient: Gradient = uncoalesced,
    dense: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Run:
    """Train two parameters in one group: both have sparse gradients, or one has dense ones."""
    table = torch.nn.Parameter(torch.ones(6, 3, dtype=dtype))
    other = torch.nn.Parameter(torch.ones(6, 3, dtype=dtype))
    run = Run(make([table, other]), [table, other])
    for step, rows in enumerate(BATCHES):
        table.grad = gradient(rows, step).to(dtype)
        sparse = gradient([step, 5], step + 10).to(dtype)
        other.grad = sparse.to_dense() if dense else sparse
        run.optimizer.step()
    return run


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", SGD, ids=str)
def test_sgd_steps_as_torchs(case: Case, flags: dict[str, Any]) -> None:
    """Compare only parameters, because our momentum is dense, and torch's may be sparse."""
    ours = trained(lambda params: case.ours(params, **flags), dense=True)
    theirs = trained(case.theirs, dense=True)

    errors = [error(a, b) for a, b in zip(ours.params, theirs.params, strict=True)]
    assert max(errors) <= BOUND


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", ADAGRAD, ids=str)
def test_adagrad_steps_as_torchs(
    case: Case, flags: dict[str, Any], gradient: Gradient, dense: bool
) -> None:
    """In some groups one parameter has sparse gradients and the other dense ones."""
    ours = trained(lambda params: case.ours(params, **flags), gradient, dense)
    theirs = trained(case.theirs, gradient, dense)

    assert_close(ours, theirs)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", SPARSE_ADAM, ids=str)
def test_sparse_adam_steps_as_torchs(case: Case, flags: dict[str, Any], gradient: Gradient) -> None:
    ours = trained(lambda params: case.ours(params, **flags), gradient)
    theirs = trained(case.theirs, gradient)

    assert [s.pop("step") for s in ours.optimizer.state.values()] == [4, 4]
    assert [s.pop("step") for s in theirs.optimizer.state.values()] == [4, 4]
    assert_close(ours, theirs)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_rows_without_a_gradient_stay_to_the_last_bit(gradient: Gradient) -> None:
    table = torch.nn.Parameter(numbers(6, 5))
    before = table.detach().clone()
    table.grad = gradient([0, 2, 2], 1)

    SGD[0].ours([table]).step()

    assert (table != before).any(1).tolist() == [True, False, True, False, False, False]


def trained_table(make: Any, dtype: torch.dtype) -> list[Tensor]:
    """Return a large table and its state after 50 steps, each with gradients for many rows."""
    table = torch.nn.Parameter(numbers(3000, 0, 40).float().to(dtype))
    optimizer = make([table])
    for step in range(50):
        indices = torch.randint(0, 3000, (1, 4000), generator=torch.Generator().manual_seed(step))
        values = numbers(4000, step, 40).float().to(dtype)
        table.grad = torch.sparse_coo_tensor(indices, values, (3000, 40), check_invariants=True)
        optimizer.step()
    state = optimizer.state[table]
    return [table.detach(), *(value for key, value in state.items() if key != "step")]


@functools.cache
def torchs(case: Case, dtype: torch.dtype) -> list[Tensor]:
    return trained_table(case.theirs, dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", [SGD[0], SPARSE_ADAM[0], ADAGRAD[0]], ids=str)
def test_float32_is_no_worse_than_torchs(case: Case, flags: dict[str, Any]) -> None:
    exact, theirs = torchs(case, torch.float64), torchs(case, torch.float32)
    ours = trained_table(lambda params: case.ours(params, **flags), torch.float32)

    errors = [(error(a, e), error(b, e)) for a, b, e in zip(ours, theirs, exact, strict=True)]
    assert all(mine <= max(1.5 * torchs, 1e-7) for mine, torchs in errors), errors


@pytest.mark.parametrize("case", [SGD[0], SPARSE_ADAM[0], ADAGRAD[0]], ids=str)
def test_a_sparse_embedding_trains(case: Case) -> None:
    finals = []
    for make in (case.ours, case.theirs):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 4, sparse=True, dtype=torch.float64)
        optimizer = make(embedding.parameters())
        for step in range(5):
            embedding(torch.tensor([step, 3, 3])).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        finals.append(embedding.weight.detach())

    assert error(*finals) <= BOUND


@pytest.mark.parametrize("case", [SGD[0], SPARSE_ADAM[0], ADAGRAD[0]], ids=str)
def test_a_gradient_scaler_changes_no_bit(case: Case) -> None:
    """With `fused=True` the step itself unscales; a power of two changes no bit."""
    finals = []
    for enabled in (True, False):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = case.ours(embedding.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=enabled)
        for step in range(4):
            optimizer.zero_grad()
            loss = embedding(torch.tensor([step, 3, 3])).pow(2).sum()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
        finals.append(embedding.weight.detach())

    assert torch.equal(*finals)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", [SGD[0], SGD[2], ADAGRAD[0]], ids=str)
def test_gradients_may_be_dense_in_one_step_and_sparse_in_the_next(
    case: Case, flags: dict[str, Any]
) -> None:
    finals = []
    for make in (lambda params: case.ours(params, **flags), case.theirs):
        table = torch.nn.Parameter(numbers(6, 5))
        optimizer = make([table])
        for step in range(7):
            grad = uncoalesced([step % 6, 2, 2], step)
            table.grad = grad.to_dense() if step % 4 < 2 else grad
            optimizer.step()
        finals.append(table.detach())

    assert error(*finals) <= BOUND


def test_sgd_takes_a_sparse_parameter_as_torch_does() -> None:
    finals = []
    for make in (SGD[0].ours, SGD[0].theirs):
        param = uncoalesced([0, 2], 1).coalesce().requires_grad_()
        optimizer = make([param])
        param.grad = uncoalesced([2, 1, 1], 2)
        optimizer.step()
        finals.append(param.detach().to_dense())
        if make == SGD[0].ours:
            assert optgen.explain(optimizer) == "group 0: for-loop: sparse parameters"

    assert error(*finals) <= BOUND
