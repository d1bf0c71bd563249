"""Test steps that are hidden behind the next forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from offload.scripts import inputs, loss, network
from offload.training import (
    BATCHES,
    OPTIONS,
    assert_equal,
    backward,
    master,
    offloaded,
    pair,
    train,
    weights,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import optgen


class Branches(nn.Module):
    """A model that reads weights by calls, from another module, twice, or never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(24, 24)
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True)  # reads out_proj's weights
        self.unused = nn.Linear(24, 24)
        self.last = nn.Linear(24, 24)

    def forward(self, batch: Tensor) -> Tensor:
        hidden = torch.tanh(self.last(torch.tanh(self.first(batch))))
        hidden = checkpoint(lambda h: torch.tanh(self.last(h)), hidden, use_reentrant=False)
        attended: Tensor = self.attention(hidden, hidden, hidden)[0]
        return hidden + attended


def slow(sim: Any) -> None:
    sim.configure(latency=0.002, jitter=0.001, seed=3)


def test_every_way_to_read_a_weight_waits_for_it(sim: Any) -> None:
    models = []
    for hide in ("nothing", "forward"):
        model = Branches().bfloat16().to("sim")
        if hide == "forward":
            slow(sim)
        module = {"module": model} if hide == "forward" else {}
        with offloaded(model, hide=hide, **module) as optimizer:
            train(model, optimizer, 5)
        models.append(model)

    assert_equal(*models)


def test_buckets_are_stepped_in_the_order_of_the_forward_pass(sim: Any) -> None:
    model = network("sim")
    backwards = nn.Sequential(*reversed(model))
    with offloaded(backwards, module=model) as optimizer:
        train(model, optimizer, 2)
        first, *_, last = optimizer._stepper._ordered_buckets()
        in_last_layer = {*backwards[1].parameters()}

        assert {piece.owner.param for piece in last.pieces} & in_last_layer
        assert not {piece.owner.param for piece in first.pieces} & in_last_layer


def test_a_hidden_step_has_the_options_of_its_time(sim: Any) -> None:
    ours, theirs = network("sim"), network("sim")
    for model, module in ((ours, {"module": ours}), (theirs, {})):
        if module:
            slow(sim)
        optimizer = offloaded(model, **module)
        for index in range(3):
            backward(model, index)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 10.0 ** -(index + 3)
            optimizer.zero_grad()
        optimizer.synchronize()
        sim.configure(latency=0, jitter=0)

    assert_equal(ours, theirs)


def test_a_state_dict_waits(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(module=None)
    optimizer.close()
    optimizer = offloaded(ours, module=ours)
    slow(sim)
    backward(ours)
    backward(theirs)
    optimizer.step()
    reference.step()
    saved = ours.state_dict()
    states = optimizer.state_dict()["state"]

    for key, value in theirs.state_dict().items():
        assert torch.equal(saved[key].cpu(), value)
    for index, state in reference.state_dict()["state"].items():
        assert all(torch.equal(states[index][key], value) for key, value in state.items())


def test_a_gradient_that_is_zeroed_in_place_too_early_is_an_error(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, module=model) as optimizer:
        backward(model)
        slow(sim)
        optimizer.step()
        model.zero_grad(set_to_none=False)
        with pytest.raises(optgen.offloading.OffloadError, match=r"was changed after step\(\)"):
            optimizer.synchronize()


def test_the_optimizers_own_zero_grad_waits(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(module=None)
    optimizer.close()
    optimizer = offloaded(ours, module=ours)
    slow(sim)
    for model, each in ((ours, optimizer), (theirs, reference)):
        for index in range(3):
            backward(model, index)
            each.step()
            each.zero_grad(set_to_none=False)
    optimizer.synchronize()

    assert_equal(ours, theirs)


@pytest.mark.parametrize("norm", [0.01, 100.0])
def test_clipping_is_exact(norm: float, sim: Any) -> None:
    """The norm is known when `step` returns. The result is that of a step that is not hidden."""
    ours, theirs = network("sim"), network("sim")
    hidden = offloaded(ours, module=ours, clip_norm=norm)
    shown = offloaded(theirs, clip_norm=norm)
    for index in range(3):
        slow(sim)
        backward(ours, index)
        hidden.step()
        assert hidden.grad_norm is not None
        hidden.zero_grad()
        hidden.synchronize()
        sim.configure(latency=0, jitter=0)
        backward(theirs, index)
        shown.step()
        shown.zero_grad()

        assert hidden.grad_norm == shown.grad_norm
    assert_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it
@pytest.mark.parametrize("model", ["compiled", "plain", "plain, run before"])
def test_a_compiled_model_waits(model: str, sim: Any) -> None:
    """Code that was compiled without hooks runs without them: then a step is not hidden."""
    torch._dynamo.reset()
    ours, theirs = network("sim"), network("sim")
    compiled = torch.compile(ours, backend="eager")
    if model == "plain, run before":
        loss(compiled, BATCHES[0].to("sim"))
    optimizer = offloaded(ours, module=compiled if model == "compiled" else ours)
    shown = offloaded(theirs)
    slow(sim)
    for index in range(3):
        loss(compiled, BATCHES[index].to("sim")).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.synchronize()
    sim.configure(latency=0, jitter=0)
    train(theirs, shown)

    assert_equal(ours, theirs)


def test_a_forward_pass_in_evaluation_waits(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(module=None)
    optimizer.close()
    optimizer = offloaded(ours, module=ours)
    slow(sim)
    for model, each in ((ours, optimizer), (theirs, reference)):
        backward(model)
        each.step()
    batch = inputs(1)[0]
    with torch.no_grad():
        assert torch.equal(ours(batch.to("sim")).cpu(), theirs(batch))


def test_the_step_does_not_wait_for_copies(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, module=model) as optimizer:
        train(model, optimizer, 1)
        backward(model)
        torch.accelerator.synchronize()
        sim.configure(stalled=True)
        optimizer.step()  # returns, although no copy can run
        sim.configure(stalled=False)
        optimizer.synchronize()

    assert weights(model)


def test_a_use_that_no_hook_saw_is_told(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, module=model) as optimizer:
        train(model, optimizer, 1)
        backward(model, 1)
        optimizer.step()
        optimizer.zero_grad()
        batch = BATCHES[2].to("sim")
        torch.nn.functional.linear(batch, model[0].weight).float().sum().backward()
        with pytest.raises(optgen.offloading.OffloadError, match=r"0\.weight has a gradient, but"):
            optimizer.step()


@pytest.mark.parametrize("gradients", ["stay", "leave"])
def test_a_step_that_was_refused_is_taken_later(gradients: str, sim: Any) -> None:
    """Its modules have waited, although an earlier call of step asked for that."""
    ours, theirs = network("sim"), network()
    optimizer = offloaded(ours, module=ours, gradients=gradients, clip_norm=None)
    reference = master("adamw")(theirs.parameters(), lr=1e-2)
    for model, each in ((ours, optimizer), (theirs, reference)):
        for index in range(3):
            backward(model, index)
            each.param_groups[0]["lr"] = "fast"
            with pytest.raises(TypeError, match="lr must be a number"):
                each.step()
            each.param_groups[0]["lr"] = 1e-2
            each.step()
            each.zero_grad()
    optimizer.close()

    assert_equal(ours, theirs)


def test_a_second_step_with_the_same_gradients(sim: Any) -> None:
    """It is refused, because nobody tells that no weight was used, and taken after a wait."""
    ours, theirs = network("sim"), network()
    optimizer = offloaded(ours, module=ours)
    reference = master("adamw")(theirs.parameters(), lr=1e-2)
    for model, each in ((ours, optimizer), (theirs, reference)):
        backward(model)
        each.step()
        if model is ours:
            with pytest.raises(optgen.offloading.OffloadError, match="or step again"):
                each.step()
            optimizer.synchronize()
        each.step()
        each.zero_grad()
        train(model, each, 2, first=1)
    optimizer.close()

    assert_equal(ours, theirs)


def test_a_group_that_is_added_between_hidden_steps(sim: Any) -> None:
    """Parameters that no step has touched since need no wait."""
    ours, theirs = network("sim"), network()
    first = optgen.offload("adamw", ours[0].parameters(), module=ours, lr=1e-2, **OPTIONS)
    second = master("adamw")(theirs[0].parameters(), lr=1e-2)
    with first:
        for model, optimizer in ((ours, first), (theirs, second)):
            train(model, optimizer, 2)
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 1e-3})
            model.zero_grad()
            backward(model, 2)
            model[0].zero_grad()  # so its weights are those of the step before
            optimizer.step()
            optimizer.zero_grad()
            train(model, optimizer, 2, first=3)

    assert_equal(ours, theirs)


def test_weights_that_follow_and_are_not_stepped(sim: Any) -> None:
    """The next forward pass waits until the worker has read them, and no longer."""
    ours, theirs = network("sim"), network()
    optimizer = offloaded(ours, module=ours)
    reference = master("adamw")(theirs.parameters(), lr=1e-2)
    for model, each in ((ours, optimizer), (theirs, reference)):
        train(model, each, 1)
        with torch.no_grad():
            model[-2].bias.fill_(0.5)
        backward(model, 1)
        model[-2].zero_grad()
        if model is ours:
            sim.configure(latency=0.02)
        each.step()
        each.zero_grad()
        train(model, each, 2, first=2)
    optimizer.close()

    assert_equal(ours, theirs)
