"""Test that either both ranks step a sharded parameter or none, and that none waits forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import pair
from torch import Tensor, distributed, nn

from optgen import explain
from optgen.optim import Adafactor, Adam, Muon

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

Spoil = Callable[[Any, Any], None]  # (optimizer, param): changes one of them on one rank


def _remove_gradient(optimizer: Any, param: Any) -> None:
    param.grad = None


def _change_lr(optimizer: Any, param: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.5


def _change_shape_of_a_state(optimizer: Any, param: Any) -> None:
    optimizer.state[param]["row_var"] = torch.zeros(7, 1)


def _change_step_count(optimizer: Any, param: Any) -> None:
    optimizer.state[param]["step"].add_(1)


def _set_differentiable(optimizer: Any, param: Any) -> None:
    optimizer.param_groups[0]["differentiable"] = True


# how rank 1 spoils the step; then the errors of rank 0 and of rank 1
CASES_OF_ONE_FAILURE: dict[str, tuple[Spoil, str, str]] = {
    "no gradient": (_remove_gradient, "different steps", "different steps"),
    "another lr": (_change_lr, "different steps", "different steps"),
    "another step count": (_change_step_count, "different steps", "different steps"),
    "a state of another shape": (
        _change_shape_of_a_state,
        "another rank could not",
        "row_var has the shape",
    ),
    "differentiable": (_set_differentiable, "another rank could not", "neither differentiable"),
}


def _sharded(shape: tuple[int, ...] = (5, 3), axis: int = 0) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = distributed.init_device_mesh("cpu", (2,))
    values, grads = torch.randn(2, *shape)
    param = nn.Parameter(distribute_tensor(values, mesh, [Shard(axis)], src_data_rank=None))
    param.grad = distribute_tensor(grads, mesh, [Shard(axis)], src_data_rank=None)
    return param


def _error_of_spoilt_step(rank: int, spoil: Spoil, fused: bool) -> str:
    """Return the error of a step that rank 1 spoils; then take a step that is not spoilt."""
    param, other = _sharded(), _sharded((4,))
    optimizer = Adafactor([param, other], foreach=not fused, fused=fused)
    optimizer.step()
    grad, states = param.grad, {**optimizer.state[param]}
    count = float(states["step"])
    before = [param.to_local().clone(), other.to_local().clone()]
    if rank == 1:
        spoil(optimizer, param)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    assert torch.equal(param.to_local(), before[0])
    assert torch.equal(other.to_local(), before[1])
    param.grad, optimizer.state[param] = grad, states
    states["step"].fill_(count)
    optimizer.param_groups[0].update(lr=0.01, differentiable=False)
    optimizer.step()
    assert float(optimizer.state[param]["step"]) == float(optimizer.state[other]["step"]) == 2
    assert rank == 1 or not torch.equal(other.to_local(), before[1])
    return str(caught.value)


def _error_of_nearly_equal_lrs(rank: int) -> str:
    """Return the error for tensor learning rates that differ only beyond the printed digits."""
    lrs = torch.tensor([0.01, 0.010001])
    assert repr(lrs[0]) == repr(lrs[1])
    optimizer = Adafactor([_sharded()], lr=lrs[rank], fused=True)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    return str(caught.value)


def _partial_gradient(param: Any) -> Any:
    """Return a gradient of which each rank holds a summand."""
    from torch.distributed.tensor import DTensor, Partial

    return DTensor.from_local(torch.ones(param.shape), param.device_mesh, [Partial()])


def _set_bad_lr(optimizer: Any, param: Any) -> None:
    optimizer.param_groups[0]["lr"] = "high"


def _set_bad_beta(optimizer: Any, param: Any) -> None:
    optimizer.param_groups[0]["betas"] = (1.5, 0.9)


def _shard_gradient_by_columns(optimizer: Any, param: Any) -> None:
    param.grad = _ones(param, axis=1)


def _shard_gradient_by_rows(optimizer: Any, param: Any) -> None:
    param.grad = _ones(param, axis=0)


def _ones(param: Any, axis: int) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    ones = torch.ones(param.shape)
    return distribute_tensor(ones, param.device_mesh, [Shard(axis)], src_data_rank=None)


# the class; how rank 1 spoils the step; then the errors of rank 0 and of rank 1
CASES_OF_REDISTRIBUTION: dict[str, tuple[type[Any], Spoil, str, str]] = {
    "elementwise": (Adam, _set_bad_lr, "", "lr must be a number"),
    "elementwise, a bound": (Adam, _set_bad_beta, "", "betas must be less than 1"),
    "phases": (Adafactor, _set_bad_lr, "another rank could not", "lr must be a number"),
    "another redistribution": (
        Adafactor,
        _shard_gradient_by_columns,
        "different steps",
        "different steps",
    ),
    "no redistribution on rank 1": (
        Adafactor,
        _shard_gradient_by_rows,
        "different steps",
        "different steps",
    ),
}


def _errors_of_redistributing_steps(
    rank: int, cls: type[Any], spoil: Spoil, fused: bool
) -> list[str]:
    """Return the errors of a first and a second step. Both redistribute; rank 1 spoils both."""
    messages = []
    for earlier_steps in (0, 1):
        first, last = _sharded(), _sharded((4, 2))
        groups = [{"params": [first]}, {"params": [last]}]
        optimizer = cls(groups, foreach=not fused, fused=fused)
        for _ in range(earlier_steps):
            optimizer.step()
        first.grad, last.grad = _partial_gradient(first), _partial_gradient(last)
        if rank == 1:
            spoil(optimizer, first)
        message = ""
        try:
            optimizer.step()
        except (RuntimeError, TypeError, ValueError) as error:
            message = str(error)
        messages.append(message)
        if cls is Adafactor or rank == 1:
            assert len(optimizer.state) == 2 * earlier_steps
    return messages


def _values_after_overflow(rank: int, fused: bool) -> list[float]:
    """Let a gradient scaler find an infinity on rank 1 only; neither rank steps. Then both step.

    Return for both steps `found_inf`, whether the parameter changed, and the step count.
    """
    param = _sharded()
    optimizer: Any = Adafactor([param], foreach=not fused, fused=fused)
    optimizer.step()
    observed = []
    for found_inf in (float(rank), 0.0):
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(found_inf)
        before = param.full_tensor()
        optimizer.step()
        observed += [optimizer.found_inf.item(), (param.full_tensor() != before).any().item()]
        observed.append(optimizer.state[param]["step"].item())
    return observed


def _explain_beside_an_unsharded_parameter(rank: int) -> list[str]:
    """Return `explain` of steps in which rank 1 also has a parameter that is not sharded."""
    param, alone = _sharded(), nn.Parameter(torch.ones(3, 2))
    optimizer = Muon([param, alone] if rank else [param], foreach=True)
    alone.grad = torch.ones(3, 2)
    optimizer.step()
    alone.grad = None
    optimizer.step()
    return explain(optimizer).splitlines()


def _check_maxima(rank: int) -> list[bool]:
    """Tell whether maxima over both ranks are right: NaN of rank 0, NaN of rank 1, and 2."""
    from optgen.runtime.sharded.reductions import PartialReduction, batched_all_reduce

    values = torch.tensor([torch.nan if rank == 0 else 1.0, torch.nan if rank else 1.0, rank + 1.0])
    sums = torch.tensor([0.5, 2.0], dtype=torch.float64)
    nothing: Tensor = torch.zeros(0, 1)
    group = distributed.group.WORLD
    assert group is not None
    groups = (group,)
    batched_all_reduce(
        [
            PartialReduction(values, groups, is_maximum=True),
            PartialReduction(sums, groups),
            PartialReduction(nothing, ()),
        ]
    )
    assert sums.tolist() == [1.0, 4.0]
    return [*values[:2].isnan().tolist(), values[2].item() == 2]


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("case", CASES_OF_ONE_FAILURE)
def test_neither_rank_steps_if_one_cannot(case: str, fused: bool) -> None:
    spoil, expected_of_other, expected_of_spoiler = CASES_OF_ONE_FAILURE[case]

    other, spoiler = pair.run(_error_of_spoilt_step, spoil, fused)

    assert expected_of_other in other
    assert expected_of_spoiler in spoiler


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("case", CASES_OF_REDISTRIBUTION)
def test_no_rank_waits_forever_in_a_redistribution(case: str, fused: bool) -> None:
    """A failing rank still takes part in the redistributions, or all ranks refuse the step."""
    cls, spoil, expected_of_other, expected_of_spoiler = CASES_OF_REDISTRIBUTION[case]

    other, spoiler = pair.run(_errors_of_redistributing_steps, cls, spoil, fused, limit=20)

    assert [bool(message) for message in other] == [bool(expected_of_other)] * 2
    assert all(expected_of_other in message for message in other), other
    assert all(expected_of_spoiler in message for message in spoiler), spoiler


def test_ranks_with_nearly_equal_learning_rates_are_refused() -> None:
    for message in pair.run(_error_of_nearly_equal_lrs):
        assert "different steps" in message


@pytest.mark.parametrize("fused", [True, False])
def test_neither_rank_steps_if_gradients_overflow_on_one(fused: bool) -> None:
    assert pair.run(_values_after_overflow, fused) == [[1, False, 1, 0, True, 2]] * 2


def test_one_rank_may_have_an_unsharded_parameter() -> None:
    one, two = pair.run(_explain_beside_an_unsharded_parameter)

    assert len(one) == len(two) == 1  # only the sharded parameter has a gradient
    assert "the other shards" in one[0]
    assert one == two


def test_nan_is_the_largest_magnitude_on_all_ranks() -> None:
    assert pair.run(_check_maxima) == [[True, True, True]] * 2
