"""Test sparse gradients that torch's classes accept; test_sparse_errors.py tests the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity.cases import Case
from parity.trajectories import BOUND, Run, assert_close, relative_error
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


def random_rows(rows: int, seed: int, width: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


def uncoalesced(rows: list[int], seed: int) -> Tensor:
    """Return a 6x3 gradient with values in these rows; values of a repeated row add up."""
    return torch.sparse_coo_tensor(
        torch.tensor([rows], dtype=torch.int64),
        random_rows(len(rows), seed),
        (6, 3),
        check_invariants=True,
        is_coalesced=False,
    )


def coalesced(rows: list[int], seed: int) -> Tensor:
    return uncoalesced(rows, seed).coalesce()


def with_strided_indices(rows: list[int], seed: int) -> Tensor:
    """Return a gradient with column-major values and strided indices."""
    strided_indices = torch.tensor([rows, rows], dtype=torch.int64).T.contiguous().T[:1]
    values = random_rows(len(rows), seed).T.contiguous().T
    return torch.sparse_coo_tensor(strided_indices, values, (6, 3), check_invariants=True)


def with_an_index_per_element(rows: list[int], seed: int) -> Tensor:
    """Return a gradient with a row and a column index for each value."""
    indices = torch.tensor([rows, [row % 3 for row in rows]], dtype=torch.int64)
    values = random_rows(len(rows), seed)[:, 0]
    return torch.sparse_coo_tensor(indices, values, (6, 3), check_invariants=True)


GRADIENTS: list[Gradient] = [
    uncoalesced,
    coalesced,
    with_strided_indices,
    with_an_index_per_element,
]
ROWS_OF_STEPS = [[0, 2, 2], [5], [], [1, 0, 4, 4, 1]]


def train_two_parameters(
    make: Any,
    gradient: Gradient = uncoalesced,
    dense: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Run:
    """Train two parameters in one group; the second has dense gradients if `dense`."""
    table = torch.nn.Parameter(torch.ones(6, 3, dtype=dtype))
    other = torch.nn.Parameter(torch.ones(6, 3, dtype=dtype))
    run = Run(make([table, other]), [table, other])
    for step, rows in enumerate(ROWS_OF_STEPS):
        table.grad = gradient(rows, step).to(dtype)
        sparse = gradient([step, 5], step + 10).to(dtype)
        other.grad = sparse.to_dense() if dense else sparse
        run.optimizer.step()
    return run


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", SGD, ids=str)
def test_sgd_steps_equal_torchs(case: Case, flags: dict[str, Any]) -> None:
    """Momentum is not compared, because ours is dense, and torch's may be sparse."""
    ours = train_two_parameters(lambda params: case.ours(params, **flags), dense=True)
    theirs = train_two_parameters(case.theirs, dense=True)

    errors = [relative_error(a, b) for a, b in zip(ours.params, theirs.params, strict=True)]
    assert max(errors) <= BOUND


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", ADAGRAD, ids=str)
def test_adagrad_steps_equal_torchs(
    case: Case, flags: dict[str, Any], gradient: Gradient, dense: bool
) -> None:
    """In some groups one parameter has sparse gradients and the other dense ones."""
    ours = train_two_parameters(lambda params: case.ours(params, **flags), gradient, dense)
    theirs = train_two_parameters(case.theirs, gradient, dense)

    assert_close(ours, theirs)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", SPARSE_ADAM, ids=str)
def test_sparse_adam_steps_equal_torchs(
    case: Case, flags: dict[str, Any], gradient: Gradient
) -> None:
    ours = train_two_parameters(lambda params: case.ours(params, **flags), gradient)
    theirs = train_two_parameters(case.theirs, gradient)

    assert [s.pop("step") for s in ours.optimizer.state.values()] == [4, 4]
    assert [s.pop("step") for s in theirs.optimizer.state.values()] == [4, 4]
    assert_close(ours, theirs)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_step_changes_no_bit_of_rows_without_a_gradient(gradient: Gradient) -> None:
    table = torch.nn.Parameter(random_rows(6, 5))
    before = table.detach().clone()
    table.grad = gradient([0, 2, 2], 1)

    SGD[0].ours([table]).step()

    assert (table != before).any(1).tolist() == [True, False, True, False, False, False]


def train_table(make: Any, dtype: torch.dtype) -> list[Tensor]:
    """Return a large table and its state after 50 steps, each with gradients for many rows."""
    table = torch.nn.Parameter(random_rows(3000, 0, 40).float().to(dtype))
    optimizer = make([table])
    for step in range(50):
        indices = torch.randint(0, 3000, (1, 4000), generator=torch.Generator().manual_seed(step))
        values = random_rows(4000, step, 40).float().to(dtype)
        table.grad = torch.sparse_coo_tensor(indices, values, (3000, 40), check_invariants=True)
        optimizer.step()
    state = optimizer.state[table]
    return [table.detach(), *(value for key, value in state.items() if key != "step")]


@functools.cache
def torchs_table(case: Case, dtype: torch.dtype) -> list[Tensor]:
    return train_table(case.theirs, dtype)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", [SGD[0], SPARSE_ADAM[0], ADAGRAD[0]], ids=str)
def test_float32_errors_are_within_torchs(case: Case, flags: dict[str, Any]) -> None:
    exact, theirs = torchs_table(case, torch.float64), torchs_table(case, torch.float32)
    ours = train_table(lambda params: case.ours(params, **flags), torch.float32)

    errors = [
        (relative_error(a, e), relative_error(b, e))
        for a, b, e in zip(ours, theirs, exact, strict=True)
    ]
    assert all(found <= max(1.5 * bound, 1e-7) for found, bound in errors), errors


@pytest.mark.parametrize("case", [SGD[0], SPARSE_ADAM[0], ADAGRAD[0]], ids=str)
def test_a_trained_sparse_embedding_equals_torchs(case: Case) -> None:
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

    assert relative_error(*finals) <= BOUND


@pytest.mark.parametrize("case", [SGD[0], SPARSE_ADAM[0], ADAGRAD[0]], ids=str)
def test_a_gradient_scaler_changes_no_bit(case: Case) -> None:
    """With `fused=True` the step unscales gradients, exactly: the scale is a power of two."""
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
def test_dense_and_sparse_gradients_may_alternate(case: Case, flags: dict[str, Any]) -> None:
    finals = []
    for make in (lambda params: case.ours(params, **flags), case.theirs):
        table = torch.nn.Parameter(random_rows(6, 5))
        optimizer = make([table])
        for step in range(7):
            grad = uncoalesced([step % 6, 2, 2], step)
            table.grad = grad.to_dense() if step % 4 < 2 else grad
            optimizer.step()
        finals.append(table.detach())

    assert relative_error(*finals) <= BOUND


def test_sgd_steps_a_sparse_parameter_as_torch_does() -> None:
    finals = []
    for make in (SGD[0].ours, SGD[0].theirs):
        param = uncoalesced([0, 2], 1).coalesce().requires_grad_()
        optimizer = make([param])
        param.grad = uncoalesced([2, 1, 1], 2)
        optimizer.step()
        finals.append(param.detach().to_dense())
        if make == SGD[0].ours:
            assert optgen.explain(optimizer) == "group 0: for-loop: sparse parameters"

    assert relative_error(*finals) <= BOUND
