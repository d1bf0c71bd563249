"""Test views in keyed optimizers, in updates in the backward pass, and of tensor classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import INTERPRETED
from torch import Tensor
from torch.nn import Parameter

from optgen import use_lowering
from optgen.keyed import KeyedOptimizerWrapper, UpdateInBackward
from optgen.optim import Adafactor, Muon


@pytest.mark.skipif(INTERPRETED, reason="the wrappers call the same kernels")
def test_updates_in_the_backward_pass_see_the_view() -> None:
    """Each bucket has its group's view, so a rule for matrices takes a convolution."""
    results = []
    for in_backward in (True, False):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.Flatten())
        groups = [{"params": list(network.parameters()), "view": (4, -1)}]
        inputs = torch.randn(2, 2, 4, 4)
        if in_backward:
            model: torch.nn.Module = UpdateInBackward(network, Muon, groups=groups, lr=0.1)
        else:
            model, optimizer = network, Muon(groups, lr=0.1)
        for _ in range(3):
            model(inputs).square().mean().backward()
            if in_backward:
                model.fused_optimizer.step()
            else:
                optimizer.step()
                optimizer.zero_grad()
        results.append(network[0].weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.skipif(INTERPRETED, reason="the wrappers call the same kernels")
def test_a_keyed_optimizer_makes_the_states_of_the_view() -> None:
    param = Parameter(torch.ones(6, 8))
    inner = Adafactor([{"params": [param], "view": (2, 3, 8)}])
    KeyedOptimizerWrapper({"weight": param}, lambda params: inner).init_state()
    shapes = {key: tuple(value.shape) for key, value in inner.state[param].items()}
    assert shapes == {"step": (), "row_var": (2, 3, 1), "col_var": (2, 1, 8)}


class TensorSubclass(Tensor):
    """A tensor class with operations of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.skipif(INTERPRETED, reason="only the for-loop takes such tensors")
def test_a_tensor_class_with_operations_of_its_own_may_have_a_view() -> None:
    plain = Parameter(torch.arange(24.0).reshape(4, 6))
    subclassed = torch.arange(24.0).reshape(4, 6).as_subclass(TensorSubclass).requires_grad_()
    for param in (plain, subclassed):
        param.grad = torch.ones_like(param)
        optimizer = Adafactor([{"params": [param], "view": (2, -1, 3)}])
        with use_lowering("forloop"):
            optimizer.step()
        assert optimizer.state[param]["row_var"].shape == (2, 4, 1)
    assert torch.equal(plain.detach(), subclassed.detach().as_subclass(Tensor))
