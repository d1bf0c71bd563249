"""Parameters, gradients, and changes to an optimizer between two of its steps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Change = Callable[[Any, list[Tensor]], None]


def parameters(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, dtype=torch.float64).to(dtype))
        for shape in ((3, 4), (600,), (), (0, 2), (2, 3, 4))
    ]


def give_gradients(params: list[Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in params:
        grad = torch.randn(param.shape, dtype=torch.float64, generator=generator)
        param.grad = grad.to(param.dtype)


def change_nothing(optimizer: Any, params: list[Tensor]) -> None:
    pass


def drop_some_gradients(optimizer: Any, params: list[Tensor]) -> None:
    params[0].grad = params[2].grad = None


def transpose_a_gradient(optimizer: Any, params: list[Tensor]) -> None:
    grad = params[0].grad
    assert grad is not None
    params[0].grad = grad.t().contiguous().t()


def expand_a_gradient(optimizer: Any, params: list[Tensor]) -> None:
    params[0].grad = torch.ones(4, dtype=torch.float64).expand(3, 4)


def negate_the_gradients(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        assert param.grad is not None
        param.grad = torch._neg_view(param.grad)


def move_the_parameters(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        param.data = param.data.clone()


def permute_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    params[4].data = params[4].data.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def put_gaps_into_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    params[1].data = params[1].data.repeat_interleave(2)[::2]


def replace_a_state(optimizer: Any, params: list[Tensor]) -> None:
    state = optimizer.state[params[1]]
    key = list(state)[-1]
    state[key] = torch.full_like(state[key], 0.5)


def replace_the_states(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        optimizer.state[param] = {k: v.clone() for k, v in optimizer.state[param].items()}


def move_a_state(optimizer: Any, params: list[Tensor]) -> None:
    for value in optimizer.state[params[1]].values():
        value.data = value.data.clone()


def reorder_the_states(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.state[params[0]] = optimizer.state.pop(params[0])


def change_hyperparameters(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5
    optimizer.param_groups[0]["weight_decay"] = 0.1


def switch_to_maximize(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.param_groups[0]["maximize"] = True


def reload(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


CHANGES = [
    change_nothing,
    drop_some_gradients,
    transpose_a_gradient,
    expand_a_gradient,
    negate_the_gradients,
    move_the_parameters,
    permute_a_parameter,
    put_gaps_into_a_parameter,
    replace_a_state,
    replace_the_states,
    move_a_state,
    reorder_the_states,
    change_hyperparameters,
    switch_to_maximize,
    reload,
]
