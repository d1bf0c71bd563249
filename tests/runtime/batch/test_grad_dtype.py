"""Test gradients of another dtype: a step computes in the wider dtype and rounds once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.capture import capture_on_cpu
from optim.classes import CLASSES, give_gradients, ours_and_torchs, parameters
from parity.classes import SPARSE_CLASSES
from runtime.training import error
from torch import Tensor

from optgen import use_lowering
from optgen.optim.adam import adam

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
DENSE = [name for name in CLASSES if name not in SPARSE_CLASSES]
TESTED = ("Adam", "Adafactor", "Muon", "Rprop") if INTERPRETED else DENSE
MIXED_IN_TORCH = ("Adagrad", "RMSprop", "Adadelta", "ASGD", "SGD")
"""Torch's classes that take gradients of another dtype, and create no state in that dtype."""

pytestmark = pytest.mark.skipif(
    not hasattr(Tensor, "grad_dtype"), reason="this torch has no Tensor.grad_dtype"
)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


def give_gradients_in_dtype(
    name: str, params: list[Tensor], dtype: torch.dtype | None, step: int
) -> None:
    """Give gradients in a dtype, by default the parameter's; their values are exact in bfloat16."""
    give_gradients(name, params, step)
    for param in params:
        grad = param.grad
        assert grad is not None
        param.grad = None
        param.grad_dtype = None  # allows any dtype
        param.grad = grad.bfloat16().to(dtype or param.dtype)


def tensors_after_training(
    name: str, lowering: str, dtypes: tuple[Any, Any], **options: Any
) -> list[Tensor]:
    """Return parameters and states after four steps.

    `dtypes` are those of the parameters and of the gradients.
    """
    param_dtype, grad_dtype = dtypes
    params = parameters(name, param_dtype)
    optimizer = ours_and_torchs(name)[0](params, **options)
    for step in range(4):
        # The gradients' dtype may change from step to step.
        give_gradients_in_dtype(name, params, grad_dtype if step != 2 else param_dtype, step)
        if step == 1:
            params[0].grad = params[0].grad.to(param_dtype)
        with use_lowering(lowering):
            optimizer.step()
    states = [v for values in optimizer.state.values() for v in values.values()]
    return [*params, *(value for value in states if isinstance(value, Tensor))]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", TESTED)
def test_a_narrow_gradient_steps_a_wide_parameter_as_a_wide_gradient_does(
    name: str, lowering: str
) -> None:
    """In unfused lowerings even the bits are the same."""
    narrow = tensors_after_training(name, lowering, (torch.float32, torch.bfloat16))
    wide = tensors_after_training(name, lowering, (torch.float32, torch.float32))

    assert [value.dtype for value in narrow] == [value.dtype for value in wide]
    if lowering.startswith("fused"):  # a loop over other dtypes may add up in another order
        assert error(narrow, wide) < 1e-6
    else:
        assert all(map(torch.equal, narrow, wide))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", TESTED)
def test_a_wide_gradient_of_a_narrow_parameter_is_not_rounded(name: str, lowering: str) -> None:
    """A stored value is rounded once a step; everything else is computed in float32."""
    params = parameters(name, torch.bfloat16)
    twins = [torch.nn.Parameter(param.detach().float()) for param in params]
    twin_lowering = "fused_triton" if INTERPRETED else "forloop"
    for tensors, each_lowering in ((params, lowering), (twins, twin_lowering)):
        optimizer = ours_and_torchs(name)[0](tensors, lr=0.1)
        give_gradients_in_dtype(name, tensors, torch.float32, 0)
        with use_lowering(each_lowering):
            optimizer.step()

    assert all(param.dtype is torch.bfloat16 for param in params)
    assert error([p.float() for p in params], [t.bfloat16().float() for t in twins]) < 1e-9


@pytest.mark.parametrize("param_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MIXED_IN_TORCH)
@outside_interpreter
def test_gradients_that_torch_takes_give_torchs_step(name: str, param_dtype: torch.dtype) -> None:
    other = torch.bfloat16 if param_dtype is torch.float32 else torch.float32
    results = []
    for cls in ours_and_torchs(name):
        params = parameters(name, param_dtype)
        optimizer = cls(params, lr=0.1, foreach=False)
        for step in range(3):
            give_gradients_in_dtype(name, params, other, step)
            optimizer.step()
        results.append([param.detach().float() for param in params])

    assert error(*results) < (1e-6 if param_dtype is torch.float32 else 0.01)


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("name", DENSE)
@outside_interpreter
def test_a_captured_step_takes_narrow_gradients(name: str, lowering: str) -> None:
    options = {"capturable": True}
    with capture_on_cpu(forbid_host_reads=False):
        narrow = tensors_after_training(name, lowering, (torch.float32, torch.bfloat16), **options)
        wide = tensors_after_training(name, lowering, (torch.float32, torch.float32), **options)
    assert error(narrow, wide) < 1e-6


@outside_interpreter
def test_a_differentiable_step_keeps_the_gradients_dtype() -> None:
    """The derivative by a bfloat16 gradient is bfloat16; all else is as with float32 gradients."""
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        start = torch.linspace(-1, 1, 5, requires_grad=True)
        grad = torch.linspace(1, 2, 5).bfloat16().to(dtype).requires_grad_()
        params, state = [start.clone()], [[torch.zeros(5)], [torch.zeros(5)], []]
        adam(
            params, [grad], *state, [torch.tensor(0.0)], amsgrad=False, beta1=0.9, beta2=0.99,
            lr=0.1, weight_decay=0.1, eps=0.1, maximize=False, differentiable=True, foreach=False,
        )  # fmt: skip
        params[0].sum().backward()
        assert grad.grad is not None
        assert grad.grad.dtype is dtype
        results.append([params[0].detach(), start.grad, grad.grad.float()])

    assert all(map(torch.equal, results[0][:2], results[1][:2]))
    assert error(results[0][2:], results[1][2:]) < 0.01
