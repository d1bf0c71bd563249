"""Test rounding at random: the published algorithm, its mean, and the ends of the range."""

from __future__ import annotations

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.oracle_steps import random_tensors
from lowerings.random_numbers.rule_texts import ROUNDING_ALONE
from lowerings.random_numbers.stochastic_adamw import STOCHASTIC_ADAMW, param_after_training
from parity.cases import LOWERINGS
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.ir.random_numbers import positions, random16
from optgen.spec import Spec


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def plain_stochastic_adamw(param: Tensor, grads: list[Tensor], lr: float, seed: int) -> Tensor:
    """Return a bfloat16 parameter after AdamW with stochastic rounding.

    Written as torchao has it: a random number below 2**16 is added to the bits of the float32
    value, and the lower half is cut off.
    """
    m, v = torch.zeros_like(param), torch.zeros_like(param)
    for count, grad in enumerate(grads, 1):
        g, w = grad.float(), param.float()
        mean = m.float() * 0.9 + g * 0.1
        square = v.float() * 0.999 + g * g * 0.001
        root = (square / (1 - 0.999**count)).sqrt() + 1e-8
        exact = w - lr * 0.01 * w - lr * (mean / (1 - 0.9**count) / root)
        number = random16(positions(w), *map(torch.tensor, (seed, 0, count, 0)))
        added = 0xFFFF - (number * 2**16).int()  # a small number rounds away from zero
        bits = (exact.view(torch.int32) + added) & -0x10000
        param, m, v = bits.view(torch.float32).bfloat16(), mean.bfloat16(), square.bfloat16()
    return param


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_stochastic_adamw_equals_the_published_algorithm(lowering: str) -> None:
    start, *grads = random_tensors(5 if INTERPRETED else 16, torch.bfloat16)
    start = start + start.sign()
    param = param_after_training(start, grads, lowering, lr=1e-3, weight_decay=0.01, seed=5)

    plain = plain_stochastic_adamw(start, grads, 1e-3, 5)

    assert (param == plain).double().mean() > 0.99
    torch.testing.assert_close(param, plain, rtol=2**-7, atol=0)  # one unit in the last place


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_stochastic_rounding_is_unbiased(lowering: str) -> None:
    """The mean of many equal parameters moves as one float32 parameter does.

    The numbers are a function of the seed, so the result is the same in every run.
    """
    steps = 4 if INTERPRETED else 20
    start, grad = torch.ones(20_000).bfloat16(), torch.ones(20_000).bfloat16()
    param = param_after_training(start, [grad] * steps, lowering, lr=1e-4, weight_decay=0.0, seed=1)

    # Each step moves by 1e-4, a fortieth of the distance to the number below.
    exact, spacing = 1 - steps * 1e-4, 2**-8
    standard_deviation = ((1 - exact) * spacing) ** 0.5  # of one parameter
    assert len(param.unique()) > 1
    assert abs(param.double().mean().item() - exact) < 4 * standard_deviation / 20_000**0.5


@outside_interpreter
def test_an_infinite_seed_draws_as_seed_0() -> None:
    for lowering in LOWERINGS:
        start, grad = random_tensors(2, torch.bfloat16)
        params = [param_after_training(start, [grad], lowering, seed=s) for s in (0, torch.inf)]
        assert torch.equal(*params)


ENDS = (0, 2**-133, 3 * 2**-133, 2**-126, 2**-125, 1, 3 * 2**125, 2**128 - 2**120, torch.inf)
"""Numbers of bfloat16, among them subnormal ones, the least normal one and the largest one."""


@pytest.mark.parametrize("change", ["lr * g", "lr * g / (1 + 0 * abs(g))"])
def test_numbers_at_the_ends_of_the_range_round_alike(change: str) -> None:
    """A loop with a division stores its values later than a loop without."""
    end_numbers = torch.tensor(ENDS, dtype=torch.float64).bfloat16()
    start = torch.cat([end_numbers, -end_numbers, torch.tensor([torch.nan]).bfloat16()]).repeat(50)
    grad = torch.where(start.isfinite(), start / 700, 1)
    grad[::3] *= -1  # so some of the largest numbers grow
    spec = Spec("Step", ROUNDING_ALONE.replace("lr * g", change), "step.py", 1)
    found = []
    for lowering in LOWERINGS:
        param = torch.nn.Parameter(start.clone())
        param.grad = grad
        optimizer = optgen.load(spec)([param])
        with use_lowering(lowering):
            optimizer.step()
        found.append(param.detach())
    for param in found:
        torch.testing.assert_close(param, found[0], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(param.isfinite(), start.isfinite())
    # Enough numbers have moved for the comparison to mean something.
    assert ((found[0] != start) & ~start.isnan()).double().mean() > 0.05


@outside_interpreter
def test_complex_parameters_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = optgen.load(STOCHASTIC_ADAMW)([param])
    param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match="does not support complex parameters"):
        optimizer.step()
    assert torch.equal(param.detach(), torch.ones_like(param))
    assert not optimizer.state[param]
