"""Test fused C++ steps of rules with phases, in 16 bits and in several dtypes at once."""

from __future__ import annotations

import pytest
import torch
from parity.trajectories import values
from runtime.fused_cpu.test_phases import Shape, rule, stepped
from torch.nn import Parameter

from optgen.optim import Adafactor


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape", [(16, 8, 3, 3), (40, 30, 1, 1), (300, 200), (70, 1100), (1000,)], ids=str
)
def test_sixteen_bits_are_rounded_once(shape: Shape, dtype: torch.dtype) -> None:
    """The result is a float32 step from the same numbers, rounded once at its end."""
    (param,), (grad,) = values([shape], dtype, 1), values([shape], dtype, 2)
    narrow, wide = Parameter(param.clone()), Parameter(param.float())
    narrow.grad, wide.grad = grad.clone(), grad.float()
    eps = (torch.finfo(dtype).eps, 1e-3)
    optimizers = Adafactor([narrow], eps=eps), Adafactor([wide], eps=eps)
    for optimizer in optimizers:
        optimizer.step()

    # Sums and products differ from those of float32 in the last bit: a tie may round the other way.
    info = torch.finfo(dtype)
    half = info.eps / 2 * 2 ** wide.detach().abs().clamp(info.smallest_normal).log2().floor()
    assert ((narrow.float() - wide).abs() <= 1.01 * half).all()
    assert (narrow != wide.to(dtype)).sum() <= 1 + wide.numel() / 1000
    for key, found in optimizers[0].state[narrow].items():
        assert torch.equal(found, optimizers[1].state[wide][key].to(found.dtype)), key


@pytest.mark.parametrize("shape", [(300, 200), (70, 1100)], ids=str)
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "float16")], ids=str)
def test_streams_of_different_dtypes_are_rounded_once(
    shape: Shape, dtypes: tuple[str, str]
) -> None:
    """The dtypes are those of the parameter and of the momentum; one of them has 16 bits."""
    param_dtype, state_dtype = (getattr(torch, name) for name in dtypes)
    cls, _ = rule("came")
    mixed = Parameter(values([shape], param_dtype, 1)[0])
    exact = Parameter(mixed.detach().float())
    optimizers = cls([mixed], lr=0.01), cls([exact], lr=0.01)
    for optimizer, param in zip(optimizers, (mixed, exact), strict=True):
        optimizer.init_state()
        param.grad = values([shape], param_dtype, 2)[0].to(param.dtype)
        state_of_param = optimizer.state[param]
        state_of_param |= {key: value.float() for key, value in state_of_param.items()}
        momentum = values([shape], state_dtype, 3)[0]
        state_of_param["exp_avg"] = momentum if param is mixed else momentum.float()
        optimizer.step()

    state, expected = optimizers[0].state[mixed]["exp_avg"], optimizers[1].state[exact]["exp_avg"]
    for found, unrounded in ((mixed, exact), (state, expected)):
        half = torch.finfo(found.dtype).eps / 2
        torch.testing.assert_close(
            found.float(), unrounded, rtol=max(1.001 * half, 1e-6), atol=1e-7
        )


def test_bits_do_not_depend_on_the_other_parameters() -> None:
    """A model larger than the caches prefetches memory and cuts tensors into strips."""
    shapes = [(300, 200), (40, 1500), (16, 8, 3, 3), (1000,)]
    small_model, large_model = ([*shapes], [*shapes, (3000, 3000)])
    results, others = (
        stepped(Adafactor([Parameter(value) for value in values(each, torch.bfloat16, 0)]), 2)
        for each in (small_model, large_model)
    )

    assert all(map(torch.equal, results, others))
