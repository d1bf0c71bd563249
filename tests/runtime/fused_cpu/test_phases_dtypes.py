"""Test fused C++ steps of rules with phases, in 16 bits and in several dtypes at once."""

from __future__ import annotations

import pytest
import torch
from parity.trajectories import random_values
from runtime.fused_cpu.test_phases import Shape, load_rule, take_steps
from torch.nn import Parameter

from optgen.optim import Adafactor


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape", [(16, 8, 3, 3), (40, 30, 1, 1), (300, 200), (70, 1100), (1000,)], ids=str
)
def test_16_bit_parameters_are_rounded_once(shape: Shape, dtype: torch.dtype) -> None:
    """The result is a float32 step from the same numbers, rounded once at its end."""
    (start,), (grad,) = random_values([shape], dtype, 1), random_values([shape], dtype, 2)
    param_16_bits, param_32_bits = Parameter(start.clone()), Parameter(start.float())
    param_16_bits.grad, param_32_bits.grad = grad.clone(), grad.float()
    eps = (torch.finfo(dtype).eps, 1e-3)
    optimizers = Adafactor([param_16_bits], eps=eps), Adafactor([param_32_bits], eps=eps)
    for optimizer in optimizers:
        optimizer.step()

    # A float32 result may differ in its last bit, so a value near a tie may round the other way.
    info = torch.finfo(dtype)
    half_ulp = (
        info.eps / 2 * 2 ** param_32_bits.detach().abs().clamp(info.smallest_normal).log2().floor()
    )
    assert ((param_16_bits.float() - param_32_bits).abs() <= 1.01 * half_ulp).all()
    assert (param_16_bits != param_32_bits.to(dtype)).sum() <= 1 + param_32_bits.numel() / 1000
    for key, found in optimizers[0].state[param_16_bits].items():
        assert torch.equal(found, optimizers[1].state[param_32_bits][key].to(found.dtype)), key


@pytest.mark.parametrize("shape", [(300, 200), (70, 1100)], ids=str)
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "float16")], ids=str)
def test_streams_of_different_dtypes_are_rounded_once(
    shape: Shape, dtypes: tuple[str, str]
) -> None:
    """The dtypes are those of the parameter and of the momentum; one of them has 16 bits."""
    param_dtype, state_dtype = (getattr(torch, name) for name in dtypes)
    cls, _ = load_rule("came")
    mixed = Parameter(random_values([shape], param_dtype, 1)[0])
    exact = Parameter(mixed.detach().float())
    optimizers = cls([mixed], lr=0.01), cls([exact], lr=0.01)
    for optimizer, param in zip(optimizers, (mixed, exact), strict=True):
        optimizer.init_state()
        param.grad = random_values([shape], param_dtype, 2)[0].to(param.dtype)
        state_of_param = optimizer.state[param]
        state_of_param |= {key: value.float() for key, value in state_of_param.items()}
        momentum = random_values([shape], state_dtype, 3)[0]
        state_of_param["exp_avg"] = momentum if param is mixed else momentum.float()
        optimizer.step()

    state, expected = optimizers[0].state[mixed]["exp_avg"], optimizers[1].state[exact]["exp_avg"]
    for found, unrounded in ((mixed, exact), (state, expected)):
        half_eps = torch.finfo(found.dtype).eps / 2
        torch.testing.assert_close(
            found.float(), unrounded, rtol=max(1.001 * half_eps, 1e-6), atol=1e-7
        )


def test_results_of_a_parameter_do_not_depend_on_other_parameters() -> None:
    """If a model exceeds the caches, the kernel prefetches memory and cuts tiles into strips."""
    shapes = [(300, 200), (40, 1500), (16, 8, 3, 3), (1000,)]
    small_model, large_model = ([*shapes], [*shapes, (3000, 3000)])
    results, results_in_large_model = (
        take_steps(
            Adafactor([Parameter(value) for value in random_values(each, torch.bfloat16, 0)]), 2
        )
        for each in (small_model, large_model)
    )

    # `map` ends before the large model's additional parameter, which is the last.
    assert all(map(torch.equal, results, results_in_large_model))
