"""Every class where its step, or the model beside it, is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim.classes import closure, give_gradients, kinds, parameters
from parity.classes import MATRICES, NAMES, SPARSE

import optgen
from optgen.runtime import dispatch
from optgen.runtime.fused_cpu import first_step


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    """Nothing that another test has compiled is counted here."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_is_the_same_step(name: str) -> None:
    """The compiler breaks its graph there, and the step runs as it is: hooks, state and numbers."""
    ours, plain = parameters(name), parameters(name)
    optimizer, reference = kinds(name)[0](ours), kinds(name)[0](plain)
    calls = []
    optimizer.register_step_post_hook(lambda *args: calls.append(1))
    compiled = torch.compile(optimizer.step, backend="eager")

    for step in range(3):
        for params, take in ((ours, compiled), (plain, reference.step)):
            give_gradients(name, params, step)
            evaluate = closure(name, params)
            take(*([evaluate] if evaluate else []))

    assert all(map(torch.equal, ours, plain))
    assert len(calls) == 3


def model_for(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name in SPARSE:
        return torch.nn.Embedding(5, 3, sparse=True)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4, bias=name not in MATRICES),
        torch.nn.Tanh(),
        torch.nn.Linear(4, 1, bias=name not in MATRICES),
    )


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's, of the loss, at a break
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_a_training_step_that_is_compiled_as_a_whole(name: str) -> None:
    """Forward, backward, zero_grad and step in one compiled function, by a real backend."""
    losses = []
    for compiled in (False, True):
        model = model_for(name)
        optimizer = kinds(name)[0](model.parameters(), lr=0.1)

        def train(batch: torch.Tensor, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        take = torch.compile(train, backend="aot_eager") if compiled else train
        batch = torch.linspace(-1, 1, 12).view(4, 3)
        losses.append([take(batch) for _ in range(4)])

    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_of_a_compiled_model(name: str) -> None:
    trained = []
    for compiled in (False, True):
        model = model_for(name)
        called = torch.compile(model, backend="eager") if compiled else model
        optimizer = kinds(name)[0](called.parameters())
        batch = torch.arange(4) if name in SPARSE else torch.linspace(-1, 1, 12).view(4, 3)

        def evaluate(called: Any = called, optimizer: Any = optimizer, batch: Any = batch) -> Any:
            optimizer.zero_grad()
            loss = (called(batch) - 1).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(evaluate)
        trained.append(list(model.parameters()))

    assert all(map(torch.equal, *trained))


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_forced_lowering_is_forced_in_a_compiled_step(lowering: str) -> None:
    params = parameters("Adam")
    give_gradients("Adam", params)
    optimizer = optgen.optim.Adam(params)
    taken = set()
    original = dispatch.choose

    def choose(optimizer: Any, work: Any) -> Any:
        chosen = original(optimizer, work)
        taken.add(chosen[0])
        return chosen

    with pytest.MonkeyPatch.context() as patch, optgen.use_lowering(lowering):
        for module in (dispatch, first_step):
            patch.setattr(module, "choose", choose)
        torch.compile(optimizer.step, backend="eager")()

    assert taken == {lowering}
