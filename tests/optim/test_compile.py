"""Test every class with a compiled step, and with a compiled model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from logs import collect_logs
from optim.classes import closure, give_gradients, ours_and_torchs, parameters
from parity.classes import MATRICES, NAMES, SPARSE

import optgen
import optgen.keyed
from optgen.runtime import dispatch


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    """Reset Dynamo, so that it does not reuse code that another test has compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_is_the_same_step(name: str) -> None:
    """The compiler breaks its graph at the step, which runs uncompiled, hooks included."""
    ours, plain = parameters(name), parameters(name)
    optimizer, reference = ours_and_torchs(name)[0](ours), ours_and_torchs(name)[0](plain)
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


# Dynamo warns of the loss at a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_a_whole_training_step_may_be_compiled(name: str) -> None:
    """Forward, backward, zero_grad and step are one compiled function, with a real backend."""
    losses = []
    for compiled in (False, True):
        model = model_for(name)
        optimizer = ours_and_torchs(name)[0](model.parameters(), lr=0.1)

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


def keyed(params: Any) -> Any:
    named = {str(index): param for index, param in enumerate(params)}
    inner = optgen.keyed.KeyedOptimizerWrapper(
        named, lambda params: optgen.optim.AdamW(params, lr=0.1)
    )
    warmup = optgen.keyed.WarmupOptimizer(inner, [], lr=0.1)
    return optgen.keyed.GradientClippingOptimizer(optgen.keyed.CombinedOptimizer([warmup]))


def lbfgs(params: Any) -> Any:
    return optgen.optim.LBFGS(params, lr=0.1, max_iter=2)


def adam(params: Any) -> Any:
    return optgen.optim.Adam(params, lr=0.1)


def hooked(params: Any) -> Any:
    """Return an optimizer with a hook, which cannot take the cached step."""
    optimizer = adam(params)
    optimizer.register_step_pre_hook(lambda *args: None)
    return optimizer


def training(make: Any) -> tuple[Any, Any]:
    """Return (training step, scheduler of its rate); the initial model is always the same."""
    model = model_for("Adam")
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)

    def train(batch: torch.Tensor) -> torch.Tensor:
        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            return loss

        if make is lbfgs:
            return optimizer.step(evaluate)
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train, scheduler


# Dynamo warns of the loss at a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    ("make", "lowering", "backend"),
    [
        *((adam, lowering, "eager") for lowering in ("forloop", "foreach", "fused_cpu")),
        *((make, "fused_cpu", "aot_eager") for make in (adam, hooked, lbfgs, keyed)),
    ],
)
def test_a_graph_ends_at_the_step_without_a_warning(make: Any, lowering: str, backend: str) -> None:
    """Dynamo reads nothing of ours: no warning, and no recompilation when a rate changes."""
    batch, losses = torch.linspace(-1, 1, 12).view(4, 3), []
    for compiled in (False, True):
        train, scheduler = training(make)
        take = torch.compile(train, backend=backend) if compiled else train
        no_recompile = torch._dynamo.config.patch(error_on_recompile=True)
        with optgen.use_lowering(lowering), no_recompile, collect_logs() as logged:
            run_losses = []
            for _ in range(10):
                run_losses.append(float(take(batch).detach()))
                scheduler.step()
        losses.append(run_losses)
        assert not logged

    torch.testing.assert_close(*losses)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_no_frame_of_ours_is_compiled() -> None:
    """Dynamo compiles neither the step nor any frame within it."""
    train, _ = training(adam)
    frames: list[str] = []

    def note(graph: Any, inputs: Any) -> Any:
        frames.extend(str(node.stack_trace) for node in graph.graph.nodes)
        return graph

    torch.compile(train, backend=note)(torch.linspace(-1, 1, 12).view(4, 3))

    assert frames
    assert not [frame for frame in frames if "/optgen/" in frame and "/tests/" not in frame]


def test_the_step_of_a_subclass_may_be_compiled() -> None:
    class Own(optgen.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = Own([param], lr=0.5)

    torch.compile(optimizer.step, backend="eager")()

    assert param.tolist() == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_of_a_compiled_model_are_stepped_alike(name: str) -> None:
    trained = []
    for compiled in (False, True):
        model = model_for(name)
        called = torch.compile(model, backend="eager") if compiled else model
        optimizer = ours_and_torchs(name)[0](called.parameters())
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

    def choose(optimizer: Any, batch: Any) -> Any:
        chosen = original(optimizer, batch)
        taken.add(chosen[0])
        return chosen

    with pytest.MonkeyPatch.context() as patch, optgen.use_lowering(lowering):
        patch.setattr(dispatch, "choose", choose)
        torch.compile(optimizer.step, backend="eager")()

    assert taken == {lowering}
