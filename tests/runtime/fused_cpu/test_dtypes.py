"""Test that fused C++ steps read and store every stream in its own dtype."""

from types import SimpleNamespace

import pytest
import torch
from runtime.changes import give_gradients, parameters
from torch import Tensor

from optgen.optim import SGD
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.fused_cpu.fill_table import fill_table


def first_momentum(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Return SGD's momentum buffer of this dtype after a first step: a copy of the gradient."""
    param = torch.zeros_like(grad, dtype=dtype)
    buffer = torch.zeros_like(param)
    batch = SimpleNamespace(
        params=[torch.zeros_like(grad)],
        grads=[grad],
        states=[[buffer]],
        step_counts=[],
        fresh={"momentum_buffer": [True]},
        any_fresh=True,
        memo={},
        group=SGD([torch.nn.Parameter(param)], momentum=0.5).param_groups[0],
    )
    kernel = kernel_loader.kernel_or_reason(SGD)
    assert not isinstance(kernel, str)
    table, _ = fill_table(kernel, [batch], unscales=False)  # type: ignore[list-item]
    kernel.run(table, SimpleNamespace())  # type: ignore[arg-type]
    return buffer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_number_of_16_bits_is_read_exactly(dtype: torch.dtype) -> None:
    all_numbers = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)

    buffer = first_momentum(all_numbers, torch.float32)

    torch.testing.assert_close(buffer, all_numbers.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stores_in_16_bits_round_as_torch_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exponents = torch.randint(-150, 128, (100_000,))
    numbers = torch.randn(100_000) * torch.exp2(exponents.double()).float()
    all_numbers = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype).float()
    next_floats = torch.nextafter(all_numbers, torch.tensor(torch.inf))
    neighbours = torch.cat([all_numbers, next_floats, all_numbers * 1.001])
    ties = (all_numbers[:-1].double() + all_numbers[1:].double()).div(2).float()
    numbers = torch.cat([numbers, neighbours, ties])

    buffer = first_momentum(numbers, dtype)

    torch.testing.assert_close(buffer, numbers.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("with_and_without_reader")
def test_bfloat16_parameters_may_have_float32_states() -> None:
    params = parameters(dtype=torch.bfloat16)
    optimizer = SGD(params, lr=0.5, momentum=0.5)
    expected = [torch.zeros(param.shape) for param in params]
    for step in range(4):
        give_gradients(params, step)
        if step == 1:
            for state in optimizer.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].float()
        optimizer.step()
        for param, buffer in zip(params, expected, strict=True):
            assert param.grad is not None
            buffer.mul_(0.5).add_(param.grad.float())

    buffers = [optimizer.state[param]["momentum_buffer"] for param in params]
    assert [buffer.dtype for buffer in buffers] == [torch.float32] * len(params)
    assert all(map(torch.equal, buffers, expected))
