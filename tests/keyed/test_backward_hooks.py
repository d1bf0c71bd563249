"""Test apply_optimizer_in_backward: each parameter has an optimizer, as in torch's function."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, distributed, nn

import optgen.optim
from optgen.keyed import apply_optimizer_in_backward, in_backward_optimizer_filter
from optgen.keyed.apply_optimizer_in_backward import backward_is_nested


def network(tied: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 2))
    if tied:
        net[2].weight = net[0].weight
    return net


def backward(net: nn.Module, step: int) -> None:
    net(torch.full((3, 5), 0.1 * (step + 1))).square().sum().backward()


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("library", [torch.optim, optgen.optim], ids=["torch", "optgen"])
def test_steps_in_the_backward_pass_equal_steps_after_it(library: Any, tied: bool) -> None:
    ours, theirs = network(tied), network(tied)
    apply_optimizer_in_backward(library.AdamW, ours.parameters(), {"lr": 0.1})
    reference = library.AdamW(theirs.parameters(), lr=0.1)
    for step in range(3):
        backward(ours, step)
        assert all(param.grad is None for param in ours.parameters())
        reference.zero_grad()
        backward(theirs, step)
        reference.step()

    for param, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-6, atol=1e-7)


def test_a_parameter_keeps_its_optimizers_in_torchs_attributes() -> None:
    """Attributes are named as torch names them, so that torch's functions and engines find them."""
    net, kwargs = network(), {"lr": 0.1}
    *others, last = net.parameters()
    apply_optimizer_in_backward(optgen.optim.SGD, [last], kwargs)
    apply_optimizer_in_backward(optgen.optim.Adam, [last], {})
    first, second = last._in_backward_optimizers

    assert (type(first), type(second)) == (optgen.optim.SGD, optgen.optim.Adam)
    assert last._optimizer_classes == [optgen.optim.SGD, optgen.optim.Adam]
    assert last._optimizer_kwargs == [kwargs, {}]
    assert [name for name, _ in in_backward_optimizer_filter(net.named_parameters(), True)] == [
        "3.bias"
    ]
    remaining = [param for _, param in in_backward_optimizer_filter(net.named_parameters())]
    assert list(map(id, remaining)) == list(map(id, others))
    backward(net, 0)
    assert second.state[last]["step"] == 1
    assert remaining[0].grad is not None


@pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")
def test_torch_finds_the_optimizers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import _get_in_backward_optimizers

    net = network()
    apply_optimizer_in_backward(optgen.optim.SGD, net.parameters(), {})
    assert len(_get_in_backward_optimizers(net)) == 6


def test_without_hooks_the_backward_pass_takes_no_step() -> None:
    net = network()
    apply_optimizer_in_backward(
        optgen.optim.SGD, net.parameters(), {"lr": 0.1}, register_hook=False
    )
    before = [param.detach().clone() for param in net.parameters()]
    backward(net, 0)
    for param, old in zip(net.parameters(), before, strict=True):
        assert torch.equal(param, old)
        assert param.grad is not None
        assert len(param._in_backward_optimizers) == 1


def test_a_compiled_model_trains() -> None:
    """A compiled model trains as usual, because the hooks stay outside the graph."""
    ours, theirs = network(), network()
    apply_optimizer_in_backward(optgen.optim.AdamW, ours.parameters(), {"lr": 0.1})
    reference = optgen.optim.AdamW(theirs.parameters(), lr=0.1)
    compiled = torch.compile(ours, backend="aot_eager")
    for step in range(2):
        backward(compiled, step)
        reference.zero_grad()
        backward(theirs, step)
        reference.step()
    for param, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_captured_backward_pass_is_refused() -> None:
    """Without the error torch would silently drop some of the steps."""
    from torch._dynamo import compiled_autograd

    net = network()
    apply_optimizer_in_backward(optgen.optim.SGD, net.parameters(), {"lr": 0.1})
    with (
        compiled_autograd._enable(torch.compile(backend="aot_eager")),
        pytest.raises(RuntimeError, match="an update in the backward pass cannot be captured"),
    ):
        backward(net, 0)


class _Asks(torch.autograd.Function):
    """Ask in a backward method whether the pass is nested, alone and from a pass of its own."""

    answers: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        _Asks.answers.append(backward_is_nested())
        with torch.enable_grad():
            inner = torch.ones(1, requires_grad=True)
            inner.register_hook(lambda _: _Asks.answers.append(backward_is_nested()))
            inner.sum().backward()
        return grads[0]


def test_a_backward_method_is_a_pass_of_its_own_only_if_it_begins_one() -> None:
    """FSDP2 gives a parameter its gradient in a backward method of the pass that runs."""
    _Asks.answers.clear()
    param = torch.ones(1, requires_grad=True)
    param.register_hook(lambda _: _Asks.answers.append(backward_is_nested()))
    _Asks.apply(param).sum().backward()

    assert _Asks.answers == [False, True, False]
