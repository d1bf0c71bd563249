"""Test changes between two fused Triton steps, in Triton's interpreter."""

from itertools import cycle
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from runtime.changes import CHANGES, Change, give_gradients
from runtime.training import error
from torch import Tensor

import optgen.optim
from optgen import use_lowering
from optgen.runtime.backends import backend

pytest.importorskip("triton")

SHAPES = ((3, 4), (600,), (), (0, 2), (2, 3, 4), (2, 3, 2, 2))


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def with_gaps(tensor: Tensor) -> Tensor:
    """Return an equal tensor with gaps: as much unused memory as used."""
    memory = torch.full((*tensor.shape, 2), torch.nan, dtype=tensor.dtype)
    memory[..., 0] = tensor
    return memory[..., 0]


def make_a_parameter_channels_last(optimizer: Any, params: list[Tensor]) -> None:
    params[5].data = params[5].data.contiguous(memory_format=torch.channels_last)


def transpose_all_parameters_but_not_their_gradients(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        order = tuple(reversed(range(param.ndim)))
        param.data = param.data.permute(order).contiguous().permute(order)


def swap_the_strides_of_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    params[0].data = params[0].data.view(4, 3).t()


def put_gaps_into_every_parameter(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        param.data = with_gaps(param.data)


def put_gaps_into_every_state(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        for value in optimizer.state[param].values():
            if value.shape == param.shape:
                value.data = with_gaps(value.data)


def make_the_states_channels_last(optimizer: Any, params: list[Tensor]) -> None:
    for value in optimizer.state[params[5]].values():
        if value.ndim:
            value.data = value.data.contiguous(memory_format=torch.channels_last)


def shrink_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    """Shrink a parameter and its states, as pruning does."""
    for tensor in (params[1], *optimizer.state[params[1]].values()):
        if tensor.ndim:
            tensor.data = tensor.data[:7].clone()
    params[1].grad = torch.ones(7, dtype=torch.float64)


def grow_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    for tensor in (params[1], *optimizer.state[params[1]].values()):
        if tensor.ndim:
            tensor.data = torch.cat([tensor.data] * 3)
    params[1].grad = torch.ones(1800, dtype=torch.float64)


def convert_a_parameter_to_float32(optimizer: Any, params: list[Tensor]) -> None:
    for tensor in (params[1], *optimizer.state[params[1]].values()):
        tensor.data = tensor.data.float()
    params[1].grad = torch.ones(600)


CHANGES_OF_MEMORY = [
    make_a_parameter_channels_last,
    transpose_all_parameters_but_not_their_gradients,
    swap_the_strides_of_a_parameter,
    put_gaps_into_every_parameter,
    put_gaps_into_every_state,
    make_the_states_channels_last,
    shrink_a_parameter,
    grow_a_parameter,
    convert_a_parameter_to_float32,
]


def train_with_change(
    new_optimizer: Any, change: Change, steps: int = 4
) -> tuple[list[Tensor], Any]:
    """Return parameters and their optimizer after some steps, with a change before the third."""
    torch.manual_seed(0)
    params: list[Tensor] = [
        torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES
    ]
    optimizer = new_optimizer(params)
    for step in range(steps):
        give_gradients(params, step)
        if step == 2:
            change(optimizer, params)
        optimizer.step()
    return params, optimizer


CLASSES_AND_OPTIONS = [("Adam", {"amsgrad": True}), ("SGD", {"momentum": 0.9}), ("NAdam", {})]


@inside_interpreter
@pytest.mark.parametrize(
    ("change", "name", "options"),
    [
        pytest.param(change, name, options, id=f"{change.__name__}-{name}")
        for change, (name, options) in zip(
            [*CHANGES, *CHANGES_OF_MEMORY], cycle(CLASSES_AND_OPTIONS), strict=False
        )
    ],
)
def test_a_step_sees_changes_since_the_last_step(
    change: Change, name: str, options: dict[str, Any]
) -> None:
    """One class for each change is enough, because a change affects each class's table alike."""
    with use_lowering("fused_triton"):
        params, ours = train_with_change(
            lambda p: getattr(optgen.optim, name)(p, **options), change
        )
    expected, theirs = train_with_change(
        lambda p: getattr(torch.optim, name)(p, foreach=False, **options), change
    )

    tolerance = 1e-6 if change is convert_a_parameter_to_float32 else 1e-12
    assert error(params, expected) < tolerance
    for state, expected_state in zip(ours.state.values(), theirs.state.values(), strict=True):
        assert [(k, v.dtype, v.shape) for k, v in state.items()] == [
            (k, v.dtype, v.shape) for k, v in expected_state.items()
        ]
        assert error(list(state.values()), list(expected_state.values())) < tolerance


@inside_interpreter
def test_a_repeated_step_keeps_its_buckets() -> None:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    params[0].data = with_gaps(params[0].data)
    optimizer = optgen.optim.Adam(params)
    with use_lowering("fused_triton"):
        give_gradients(params, 0)
        optimizer.step()
        plan = backend("fused_triton")._kept[optimizer][None]._kept[0]
        give_gradients(params, 1)
        optimizer.step()

    assert backend("fused_triton")._kept[optimizer][None]._kept[0] is plan


@inside_interpreter
@pytest.mark.parametrize("size", [5, 3000])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_streams_of_unequal_shapes_are_refused(size: int, momentum: float) -> None:
    """A kernel goes over as many elements of each stream as the parameter has."""
    param = torch.nn.Parameter(torch.ones(2000))
    optimizer = optgen.optim.SGD([param], momentum=momentum)
    with use_lowering("fused_triton"):
        param.grad = torch.ones(2000)
        optimizer.step()
        param.data = torch.ones(size)
        if momentum:
            param.grad = torch.ones(size)
        with pytest.raises(RuntimeError, match="shape"):
            optimizer.step()

    assert param.tolist() == [1.0] * size


@inside_interpreter
def test_a_state_on_another_device_is_refused() -> None:
    """An address in another device's memory would be read as one of this device's."""
    param = torch.nn.Parameter(torch.ones(20))
    optimizer = optgen.optim.SGD([param], momentum=0.9)
    with use_lowering("fused_triton"):
        param.grad = torch.ones(20)
        optimizer.step()
        optimizer.state[param]["momentum_buffer"] = torch.zeros(20, device="meta")
        param.grad = torch.ones(20)
        with pytest.raises(RuntimeError, match="is on meta, but its parameter on cpu"):
            optimizer.step()
