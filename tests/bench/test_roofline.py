"""Test the loop that measures the memory limit: a sweep reads each stream, and changes no value."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pytest
import torch
from torch import Tensor

import optgen.optim
from optgen.bench.roofline import Roofline
from optgen.bench.suite import torch_threads
from optgen.cli.bench import traffic

ALL_BITS = 2**32 - 1


def optimizer_after_a_step(
    name: str, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> torch.optim.Optimizer:
    """Return an optimizer of a class after its first step."""
    params = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    for param in params:
        param.grad = torch.randn(param.shape).to(dtype)
    optimizer: torch.optim.Optimizer = getattr(optgen.optim, name)(params)
    optimizer.step()
    return optimizer


def streams_as_integers(optimizer: torch.optim.Optimizer, *keys: str) -> list[list[Tensor]]:
    """Return copies of streams as integers, one list for each parameter."""
    found = []
    for param in optimizer.param_groups[0]["params"]:
        known = {"param": param.detach(), "grad": param.grad, **optimizer.state[param]}
        found.append([known[key].flatten().view(torch.int32).clone() for key in keys])
    return found


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_roofline_step_changes_no_bit(dtype: torch.dtype) -> None:
    optimizer = optimizer_after_a_step("Adafactor", (40, 30), (33,), (8, 4, 1, 1), dtype=dtype)
    params = optimizer.param_groups[0]["params"]
    params[0].data[0, :3] = torch.tensor([float("nan"), 1e-42, -0.0])
    before = [param.detach().clone() for param in params]
    states = [[s.clone() for s in optimizer.state[p].values()] for p in params]

    roofline = Roofline(traffic("Adafactor") or (), optimizer)
    roofline.step()

    for param, old_param, old_states in zip(params, before, states, strict=True):
        assert param.detach().view(torch.uint8).equal(old_param.view(torch.uint8))
        for new, old in zip(optimizer.state[param].values(), old_states, strict=True):
            assert torch.equal(new, old)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_sweep_reads_all_its_streams_and_writes_the_stored_ones(threads: int) -> None:
    """With a mask of ones, the loop xors each stored integer with the `or` of all that it read."""
    optimizer = optimizer_after_a_step("AdamW", (50, 7), (1,), (129,))
    keys = ("param", "exp_avg", "exp_avg_sq", "grad")
    before = streams_as_integers(optimizer, *keys)
    roofline = Roofline(traffic("AdamW") or (), optimizer)
    roofline._struct.zero = ALL_BITS

    with torch_threads(threads):
        roofline.step()

    for was, now in zip(before, streams_as_integers(optimizer, *keys), strict=True):
        combined = reduce(or_, was)
        for old, new in zip(was[:3], now, strict=False):
            assert torch.equal(new, old ^ combined)
        assert torch.equal(now[3], was[3])


def test_streams_that_are_not_stored_are_read() -> None:
    optimizer = optimizer_after_a_step("Adafactor", (6, 5))
    ((param, grad, row, column),) = streams_as_integers(
        optimizer, "param", "grad", "row_var", "col_var"
    )
    roofline = Roofline([(traffic("Adafactor") or ())[0]], optimizer)

    roofline.step()

    combined = int(reduce(or_, [*param, *grad, *column])) & ALL_BITS
    assert roofline._struct.seen == combined
    assert roofline.bytes_per_step == 4 * (2 * 30 + 2 * (6 + 5) + (30 + 6 + 5) + (3 * 30 + 6 + 5))
    assert len(row) == 6


def test_16_bit_tensors_have_half_the_traffic() -> None:
    wide, narrow = (
        Roofline(
            traffic("AdamW") or (), optimizer_after_a_step("AdamW", (64, 64), dtype=dtype)
        ).bytes_per_step
        for dtype in (torch.float32, torch.bfloat16)
    )

    assert wide == 7 * 4 * 64 * 64 == 2 * narrow


def test_update_gradient_addresses_finds_new_gradients() -> None:
    optimizer = optimizer_after_a_step("SGD", (10,))
    (param,) = optimizer.param_groups[0]["params"]
    roofline = Roofline(traffic("SGD") or (), optimizer)
    roofline._struct.zero = ALL_BITS
    before = param.detach().view(torch.int32).clone()
    param.grad = torch.full((10,), -0.0)

    roofline.update_gradient_addresses()
    roofline.step()

    combined = before | param.grad.view(torch.int32)
    assert torch.equal(param.detach().view(torch.int32), before ^ combined)


def test_row_states_of_a_1x1_convolution_count_as_full_tensors() -> None:
    streams = traffic("Adafactor") or ()
    matrix = Roofline(streams, optimizer_after_a_step("Adafactor", (8, 4))).bytes_per_step
    convolution = Roofline(
        streams, optimizer_after_a_step("Adafactor", (8, 4, 1, 1))
    ).bytes_per_step

    assert convolution == 4 * 32 * (2 + 4 + 3 + 5)
    assert matrix < convolution
