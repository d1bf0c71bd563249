"""Test every class with a step or a model that torch.compile compiles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from logs import collect_logs
from optim.classes import closure, give_gradients, ours_and_torchs, parameters
from parity.classes import MATRIX_CLASSES, NAMES, SPARSE_CLASSES

import optgen
import optgen.keyed
from optgen.optim import lr_scheduler as schedulers
from optgen.optim import swa_utils
from optgen.runtime import take_step

TENSOR_RATE_REFUSED = ("LBFGS", "SparseAdam")


@pytest.fixture(autouse=True)
def reset_dynamo() -> Any:
    """Reset Dynamo, so that it does not reuse code that another test has compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", NAMES)
def test_compiled_steps_equal_eager_steps(name: str) -> None:
    """Dynamo breaks its graph at the step, which runs uncompiled, and runs hooks."""
    params, eager_params = parameters(name), parameters(name)
    optimizer, eager = (ours_and_torchs(name)[0](each) for each in (params, eager_params))
    calls = []
    optimizer.register_step_post_hook(lambda *args: calls.append(1))
    compiled_step = torch.compile(optimizer.step, backend="eager")

    for step in range(3):
        for each, step_once in ((params, compiled_step), (eager_params, eager.step)):
            give_gradients(name, each, step)
            evaluate = closure(name, each)
            step_once(*([evaluate] if evaluate else []))

    assert all(map(torch.equal, params, eager_params))
    assert len(calls) == 3


def model_for(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name in SPARSE_CLASSES:
        return torch.nn.Embedding(5, 3, sparse=True)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4, bias=name not in MATRIX_CLASSES),
        torch.nn.Tanh(),
        torch.nn.Linear(4, 1, bias=name not in MATRIX_CLASSES),
    )


# At a graph break Dynamo reads the loss's `.grad`, which warns.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_a_whole_training_step_can_be_compiled(name: str) -> None:
    """One compiled function has forward, backward, zero_grad and step."""
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

        run = torch.compile(train, backend="aot_eager") if compiled else train
        batch = torch.linspace(-1, 1, 12).view(4, 3)
        losses.append([run(batch) for _ in range(4)])

    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0][-1] < losses[0][0]


def keyed_adamw(params: Any) -> Any:
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


def adam_with_hook(params: Any) -> Any:
    """Return an optimizer that takes no cached step, because it has a hook."""
    optimizer = adam(params)
    optimizer.register_step_pre_hook(lambda *args: None)
    return optimizer


def training_step(make: Any) -> tuple[Any, Any]:
    """Return a function that trains a new model for one step, and its scheduler."""
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


# At a graph break Dynamo reads the loss's `.grad`, which warns.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    ("make", "lowering", "backend"),
    [
        *((adam, lowering, "eager") for lowering in ("forloop", "foreach", "fused_cpu")),
        *((make, "fused_cpu", "aot_eager") for make in (adam, adam_with_hook, lbfgs, keyed_adamw)),
    ],
)
def test_a_graph_ends_at_the_step_without_a_warning(make: Any, lowering: str, backend: str) -> None:
    """Dynamo does not trace into the step, so changes of the rate recompile nothing."""
    batch, losses = torch.linspace(-1, 1, 12).view(4, 3), []
    for compiled in (False, True):
        train, scheduler = training_step(make)
        run = torch.compile(train, backend=backend) if compiled else train
        no_recompile = torch._dynamo.config.patch(error_on_recompile=True)
        with optgen.use_lowering(lowering), no_recompile, collect_logs() as logged:
            run_losses = []
            for _ in range(10):
                run_losses.append(float(run(batch).detach()))
                scheduler.step()
        losses.append(run_losses)
        assert not logged

    torch.testing.assert_close(*losses)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("tensor_rate", [False, True])
@pytest.mark.parametrize("name", [*NAMES, "Lion", "ScheduleFreeAdamW"])
def test_a_compiled_function_may_write_to_the_groups(name: str, tensor_rate: bool) -> None:
    """Dynamo writes `capturable=True` back with the new rate. The group is as it was."""
    if tensor_rate and name in TENSOR_RATE_REFUSED:
        return
    results = []
    for compiled in (False, True):
        params = parameters(name)
        make = ours_and_torchs(name)[0] if name in NAMES else getattr(optgen.optim, name)
        optimizer = make(params)
        keys = set(optimizer.param_groups[0])

        def train(rate: Any, optimizer: Any = optimizer) -> None:
            for group in optimizer.param_groups:
                group["lr"] = rate

        run = torch.compile(train, backend="eager") if compiled else train
        for step in range(3):
            give_gradients(name, params, step)
            rate = 0.1 / (1 + step)
            run(torch.tensor(rate, dtype=torch.float64) if tensor_rate else rate)
            evaluate = closure(name, params)
            optimizer.step(*([evaluate] if evaluate else []))
        run(0.1)
        assert set(optimizer.state_dict()["param_groups"][0]) == keys
        assert not optimizer.param_groups[0].get("capturable")
        run(0.1)
        assert not copy.deepcopy(optimizer).param_groups[0].get("capturable")
        results.append(params)
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_capturable_groups_of_a_user_stay_capturable() -> None:
    """A group that was capturable before dynamo read it is not changed."""
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    groups = [{"params": [params[0]], "capturable": True}, {"params": [params[1]]}]
    optimizer = optgen.optim.SGD(groups, lr=0.1)
    optimizer.add_param_group({"params": [params[2]], "capturable": True})

    def write() -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.2

    for each in (optimizer, copy.deepcopy(optimizer)):
        torch.compile(write, backend="eager")()
        saved = each.state_dict()["param_groups"]
        assert [group.get("capturable") for group in saved] == [True, None, True]
    optimizer.load_state_dict(optimizer.state_dict())
    torch.compile(write, backend="eager")()
    saved = optimizer.state_dict()["param_groups"]
    assert [group.get("capturable") for group in saved] == [True, None, True]


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [3, 6]),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 12),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4),
    "LinearLR": lambda o: schedulers.LinearLR(o),
    "ConstantLR": lambda o: schedulers.ConstantLR(o),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.9),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, max_lr=0.1, total_steps=30),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 3),
    "WarmupStableDecayLR": lambda o: schedulers.WarmupStableDecayLR(
        o, warmup_steps=2, stable_steps=6, decay_steps=3
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.05),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [4]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler([schedulers.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=2),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("tensor_rate", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_in_a_compiled_function_recompiles_nothing(
    name: str, tensor_rate: bool
) -> None:
    """The graph ends at the scheduler's step, as at that of torch's schedulers."""
    rates = []
    for compiled in (False, True):
        model = model_for("SGD")
        optimizer = optgen.optim.SGD(
            model.parameters(), lr=torch.tensor(0.1) if tensor_rate else 0.1, momentum=0.9
        )
        scheduler = SCHEDULERS[name](optimizer)
        arguments = (1.0,) if name == "ReduceLROnPlateau" else ()

        def train(
            model: Any = model,
            optimizer: Any = optimizer,
            scheduler: Any = scheduler,
            arguments: Any = arguments,
        ) -> None:
            model(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step(*arguments)

        run = torch.compile(train, backend="eager") if compiled else train
        with torch._dynamo.config.patch(error_on_recompile=True):
            rates.append([run() or float(optimizer.param_groups[0]["lr"]) for _ in range(12)])
        assert not optimizer.param_groups[0].get("capturable")
    assert rates[0] == rates[1]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_no_frame_of_ours_is_compiled() -> None:
    """Dynamo compiles neither the step nor a function that the step calls."""
    train, _ = training_step(adam)
    frames: list[str] = []

    def record_frames(graph: Any, inputs: Any) -> Any:
        frames.extend(str(node.stack_trace) for node in graph.graph.nodes)
        return graph

    torch.compile(train, backend=record_frames)(torch.linspace(-1, 1, 12).view(4, 3))

    assert frames
    assert not [frame for frame in frames if "/optgen/" in frame and "/tests/" not in frame]


def test_the_step_of_a_subclass_can_be_compiled() -> None:
    class Subclass(optgen.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = Subclass([param], lr=0.5)

    torch.compile(optimizer.step, backend="eager")()

    assert param.tolist() == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_a_compiled_model_equal_those_of_an_eager_model(name: str) -> None:
    params = []
    for compiled in (False, True):
        model = model_for(name)
        callable_model = torch.compile(model, backend="eager") if compiled else model
        optimizer = ours_and_torchs(name)[0](callable_model.parameters())
        batch = torch.arange(4) if name in SPARSE_CLASSES else torch.linspace(-1, 1, 12).view(4, 3)

        def evaluate(
            callable_model: Any = callable_model, optimizer: Any = optimizer, batch: Any = batch
        ) -> Any:
            optimizer.zero_grad()
            loss = (callable_model(batch) - 1).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(evaluate)
        params.append(list(model.parameters()))

    assert all(map(torch.equal, *params))


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_use_lowering_works_in_a_compiled_step(lowering: str) -> None:
    params = parameters("Adam")
    give_gradients("Adam", params)
    optimizer = optgen.optim.Adam(params)
    lowerings = set()
    original = take_step.choose

    def choose_and_record(optimizer: Any, batch: Any) -> Any:
        choice = original(optimizer, batch)
        lowerings.add(choice[0])
        return choice

    with pytest.MonkeyPatch.context() as patch, optgen.use_lowering(lowering):
        patch.setattr(take_step, "choose", choose_and_record)
        torch.compile(optimizer.step, backend="eager")()

    assert lowerings == {lowering}
