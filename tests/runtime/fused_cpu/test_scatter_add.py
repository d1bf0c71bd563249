"""Test rules that only add a sparse gradient, such as SGD: each value is added to its row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.training import error
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.optim import SGD
from optgen.runtime.fused_cpu.sparse_gradients import CachedSparseStep
from optgen.spec import Spec

LOWERINGS = ("forloop", "foreach", "fused_cpu")
SHRINKING_STEPS = '''
from optgen.spec import *

@optimizer(gradient="rows")
def ShrinkingSteps(p, g, t, /, s=state("s", shape="scalar", init=1.0), *, lr=hyper(0.1)):
    """A rule whose steps shrink by a scalar state."""
    s = s * 0.9
    p = p - (-lr) * s * -g / (1 + t) - g * 0.5
'''


def gradient(size: tuple[int, ...], dtype: torch.dtype, step: int, count: int = 40) -> Tensor:
    """Return a sparse gradient that names rows several times, in random order."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(0, size[0], (1, count), generator=generator)
    values = torch.randn(count, *size[1:], generator=generator, dtype=torch.float64)
    return torch.sparse_coo_tensor(rows, values.to(dtype), size, check_invariants=True)


def train(optimizer: Any, params: list[Tensor], steps: int = 4, start: int = 0) -> None:
    """Take steps with sparse gradients."""
    for step in range(start, start + steps):
        for index, param in enumerate(params):
            param.grad = gradient(tuple(param.shape), param.dtype, 10 * step + index)
        optimizer.step()


def parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return parameters of several shapes, filled with ones."""
    shapes = ((7, 3), (9, 64), (11,), (5, 2, 3))
    return [Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sparse_gradients_give_torchs_step(
    lowering: str, dtype: torch.dtype, maximize: bool
) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    with use_lowering(lowering):
        train(SGD(ours, lr=0.1, maximize=maximize), ours)
    train(torch.optim.SGD(theirs, lr=0.1, maximize=maximize), theirs)

    assert error(ours, theirs) < (1e-6 if dtype is torch.float32 else 1e-14)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_rules_scalars_advance_once_a_step(lowering: str) -> None:
    """A sparse gradient advances scalars as a dense one does, whatever the number of its values."""
    cls = optgen.load(Spec("ShrinkingSteps", SHRINKING_STEPS, "<shrinking steps>", 1))
    sparse, dense = parameters(torch.float64), parameters(torch.float64)
    assert cls.rule.scatter_adds
    optimizer, reference = cls(sparse), cls(dense)
    with use_lowering(lowering):
        for step in range(3):
            for param, dense_param in zip(sparse, dense, strict=True):
                param.grad = gradient(tuple(param.shape), param.dtype, step)
                dense_param.grad = param.grad.to_dense()
            optimizer.step()
            reference.step()

    assert error(sparse, dense) < 1e-14
    assert [float(optimizer.state[param]["step"]) for param in sparse] == [3.0] * 4


def test_results_have_the_same_bits_for_any_number_of_threads() -> None:
    """There are enough values for several threads to take part."""
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            param = Parameter(torch.ones(500, 64))
            optimizer = SGD([param], lr=0.1)
            for step in range(3):
                param.grad = gradient((500, 64), torch.float32, step, count=1 << 17)
                optimizer.step()
        finally:
            torch.set_num_threads(threads)
        results.append(param.detach())

    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_16_bit_rows_are_rounded_once() -> None:
    param = Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
    rows, values = torch.zeros(1, 64, dtype=torch.int64), torch.full((64, 3), 2.0**-9)
    param.grad = torch.sparse_coo_tensor(rows, values.bfloat16(), (2, 3), check_invariants=True)

    SGD([param], lr=1.0).step()

    assert param.tolist() == [[0.875] * 3, [1.0] * 3]


def cached_and_reference() -> tuple[SGD, list[Tensor], Any, list[Tensor]]:
    """Return our optimizer, which has a cached step, and torch's, each with its parameters."""
    ours, theirs = parameters(), parameters()
    optimizer = SGD([{"params": ours[:2]}, {"params": ours[2:], "lr": 0.2}], lr=0.1)
    reference = torch.optim.SGD([{"params": theirs[:2]}, {"params": theirs[2:], "lr": 0.2}], lr=0.1)
    train(optimizer, ours)
    train(reference, theirs)
    assert isinstance(optimizer._context.cached_step, CachedSparseStep)
    return optimizer, ours, reference, theirs


def test_a_cached_step_sees_a_new_learning_rate() -> None:
    optimizer, ours, reference, theirs = cached_and_reference()
    for each, params in ((optimizer, ours), (reference, theirs)):
        for step in range(4, 8):
            each.param_groups[1]["lr"] *= 0.5
            train(each, params, 1, step)

    assert isinstance(optimizer._context.cached_step, CachedSparseStep)
    assert error(ours, theirs) < 1e-6


def test_a_cached_step_notices_changes() -> None:
    """The cached step notices dense and missing gradients, moved data, other dtypes and groups."""
    optimizer, ours, reference, theirs = cached_and_reference()
    late = [Parameter(torch.ones(4, 3)), Parameter(torch.ones(4, 3))]
    for each, params, more in ((optimizer, ours, late[0]), (reference, theirs, late[1])):
        train(each, params, 1, 4)
        params[0].grad = torch.ones(7, 3)
        each.step()
        params[0].grad = None
        each.step()
        params[1].data = params[1].data.clone()
        train(each, params, 2, 5)
        params[2].grad = None
        params[2].data = params[2].data.double()
        train(each, params, 2, 7)
        each.add_param_group({"params": [more]})
        train(each, [*params, more], 2, 9)

    assert error([*ours, late[0]], [*theirs, late[1]]) < 1e-6
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(RuntimeError, match="weight_decay option is not compatible"):
        train(optimizer, ours, 1, 11)


@pytest.mark.parametrize("row", [-1, 7])
def test_a_row_index_out_of_range_raises_and_changes_nothing(row: int) -> None:
    optimizer, ours, _, _ = cached_and_reference()
    before = [param.detach().clone() for param in ours]
    rows = torch.tensor([[0, row]])
    ours[0].grad = torch.sparse_coo_tensor(rows, torch.ones(2, 3), (7, 3), check_invariants=False)

    for lowering in LOWERINGS:
        with use_lowering(lowering), pytest.raises(IndexError, match="that has rows 0 to 6"):
            optimizer.step()
    assert all(map(torch.equal, before, ours))
    train(optimizer, ours, 1, 4)


def test_a_cached_step_advances_the_parameters_versions() -> None:
    optimizer, ours, _, _ = cached_and_reference()
    before = [param._version for param in ours]
    train(optimizer, ours, 1, 4)
    assert [param._version for param in ours] == [version + 1 for version in before]
