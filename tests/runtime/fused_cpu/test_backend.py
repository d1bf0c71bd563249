"""Test fused C++ steps: repeated, with scaled gradients, with threads, and in a forked child."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from runtime.changes import give_gradients, parameters

from optgen.optim import SGD, Adam
from optgen.runtime.fused_cpu import gathered_step, kernel_loader
from optgen.runtime.fused_cpu.fill_table import fill_table


def test_a_step_like_the_last_fills_no_new_table(monkeypatch: pytest.MonkeyPatch) -> None:
    params = parameters()
    optimizer = Adam(params)
    for step in range(2):
        give_gradients(params, step)
        optimizer.step()
    monkeypatch.setattr(gathered_step, "fill_table", None)

    for step in range(2, 5):
        give_gradients(params, step)
        params[step].grad = None
        optimizer.param_groups[0]["lr"] = 0.1 / step
        optimizer.step()

    assert [float(optimizer.state[p]["step"]) for p in params] == [5, 5, 4, 4, 4]


def test_autograd_sees_that_parameters_change() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    other = torch.nn.Parameter(torch.ones(3))
    optimizer = SGD([param, other])
    for _ in range(3):
        loss = (param * param + other * other).sum()
        param.grad, other.grad = torch.ones(3), None
        versions = param._version, other._version
        optimizer.step()
        assert (param._version, other._version) == (versions[0] + 1, versions[1])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_long_tensor_has_the_bits_of_its_parts() -> None:
    # A tensor of more than 2**21 elements has strips. Here, the last strip is shorter.
    size, part_size = (1 << 21) + 77, 1 << 20
    start = torch.linspace(-1, 1, size)
    grad = start.flip(0) * 3
    whole = [start.clone().requires_grad_()]
    parts = [part.clone().requires_grad_() for part in start.split(part_size)]
    for params, grads in (whole, [grad]), (parts, grad.split(part_size)):
        optimizer = SGD(params, momentum=0.9, weight_decay=0.01, fused=True)
        for param, grad_of_part in zip(params, grads, strict=True):
            param.grad = grad_of_part.clone()
        for _ in range(2):
            optimizer.step()

    assert torch.equal(whole[0], torch.cat([part.detach() for part in parts]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scaled_gradients_are_unscaled_in_place(dtype: torch.dtype) -> None:
    ours, theirs = parameters(dtype=dtype), parameters(dtype=dtype)
    optimizers = Adam(ours, fused=True), torch.optim.Adam(theirs, fused=True)
    for step, overflow in enumerate([0.0, 0.0, 1.0, 0.0]):
        for optimizer, params in zip(optimizers, (ours, theirs), strict=True):
            give_gradients(params, step)
            for param in params:
                assert param.grad is not None
                param.grad *= 1024
            optimizer.grad_scale = torch.tensor(1024.0)
            optimizer.found_inf = torch.tensor(overflow)
            before = [param.detach().clone() for param in params]
            optimizer.step()
            assert all(map(torch.equal, before, params)) is bool(overflow)
        if not overflow:
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))

    tolerance = 1e-6 if dtype is torch.float32 else 1e-2
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        assert optimizers[0].state[a]["step"] == optimizers[1].state[b]["step"] == 3


def test_an_overflow_in_the_first_step_leaves_momentum_fresh() -> None:
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = SGD([param], lr=1.0, momentum=0.9, dampening=0.5, fused=True)
    for found_inf in (1.0, 0.0):
        param.grad = torch.ones(3)
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()

    assert param.tolist() == [-1.0] * 3  # the first step is not dampened


def test_an_infinite_element_stays_infinite() -> None:
    """A term that a hyperparameter of 0 switches off is not multiplied by 0: 0 * inf is NaN."""
    param = torch.nn.Parameter(torch.tensor([float("inf"), 1.0]))
    param.grad = torch.ones(2)
    optimizer = SGD([param], lr=0.5)
    optimizer.step()

    assert param.tolist() == [float("inf"), 0.5]


def run(script: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    return process.stdout


THREADS = """
import torch, optgen.optim
from optgen.runtime.torch_private import thread_pool
assert thread_pool().parallel, "no OpenMP was found in the process"
def step(count):
    torch.set_num_threads(count)
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(n)) for n in (1_000_003, 17, 500_001)]
    optimizer = optgen.optim.Adam(params, weight_decay=0.1, amsgrad=True)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn_like(param)
        optimizer.step()
    return params
one, three = step(1), step(3)
assert all(map(torch.equal, one, three))
"""


def test_any_number_of_threads_gives_the_same_bits() -> None:
    run(THREADS)


FORK = """
import os, torch, optgen.optim
torch.set_num_threads(3)
param = torch.nn.Parameter(torch.zeros(3_000_000))
param.grad = torch.ones_like(param)
optimizer = optgen.optim.SGD([param], lr=0.5)
optimizer.step()
child = os.fork()
if child == 0:
    try:
        optimizer.step()
    finally:
        os._exit(param[-1].item() != -1.0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_steps_alone() -> None:
    """A forked child lacks its parent's OpenMP threads, so it must not wait for them."""
    run(FORK)


def test_a_missing_state_that_the_options_need_is_an_error() -> None:
    """Without this error, the kernel would read from a null address."""
    param = torch.nn.Parameter(torch.ones(3))
    batch = SimpleNamespace(
        params=[param],
        grads=[torch.ones(3)],
        states=[[]],
        step_counts=[],
        fresh={"momentum_buffer": [False]},
        group=SGD([param], momentum=0.5).param_groups[0],
    )
    kernel = kernel_loader.kernel_or_reason(SGD)
    assert not isinstance(kernel, str)

    with pytest.raises(RuntimeError, match="sgd needs the state 'momentum_buffer'"):
        fill_table(kernel, [batch], unscales=False)  # type: ignore[list-item]
