"""Test the base class: the promises of torch.optim.Optimizer, and the needs of frameworks."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime.batch.batches import parameter_with_gradient
from runtime.training import error, parameters, steps_with_gradients, train
from torch.optim import Optimizer

from optgen import use_lowering
from optgen.optim import Adam
from optgen.runtime import GeneratedOptimizer

pytestmark = pytest.mark.usefixtures("each_lowering")


def test_a_class_is_a_torch_optimizer_that_torch_does_not_wrap_again() -> None:
    step = Adam.step

    optimizer = Adam([parameter_with_gradient()])

    assert isinstance(optimizer, Optimizer)
    assert isinstance(optimizer, GeneratedOptimizer)
    assert Adam.step is step
    assert step.hooked is True
    assert list(inspect.signature(step).parameters) == ["self", "closure"]


def test_the_closure_runs_with_gradients_and_the_update_without() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = Adam([param])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (param**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)

    assert loss == 3
    assert (param < 1).all()
    assert torch.is_grad_enabled()


def test_grad_mode_is_restored_when_a_step_fails() -> None:
    optimizer = Adam([parameter_with_gradient()])

    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)

    assert torch.is_grad_enabled()


def test_zero_grad_sets_to_none_or_to_zeros() -> None:
    params = [parameter_with_gradient(), parameter_with_gradient()]
    optimizer = Adam(params)

    optimizer.zero_grad(set_to_none=False)
    assert [p.grad.tolist() for p in params if p.grad is not None] == [[0.0] * 3] * 2
    optimizer.zero_grad()
    assert [p.grad for p in params] == [None, None]


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_steps_independently(copy_of: Callable[[Adam], Adam]) -> None:
    params = parameters()
    optimizer = Adam(params, lr=0.1, amsgrad=True)
    train(optimizer, params, 3)

    twin = copy_of(optimizer)
    copies = twin.param_groups[0]["params"]
    train(optimizer, params, 3, seed=5)
    assert error(copies, params) > 1e-3  # nothing is shared
    train(twin, copies, 3, seed=5)

    assert error(copies, params) == 0


def test_an_object_with_a_copied_dict_shares_the_state() -> None:
    """Lightning wraps an optimizer in an object of a subclass, and copies its `__dict__`."""
    ours, theirs = parameters(), parameters()
    optimizer, reference = Adam(ours), torch.optim.Adam(theirs, foreach=False)
    train(optimizer, ours, 2)

    subclass = type("LightningAdam", (Adam,), {})
    wrapper = subclass.__new__(subclass)
    wrapper.__dict__ = dict(optimizer.__dict__)
    train(wrapper, ours, 2)
    train(optimizer, ours, 2)

    for _ in range(3):
        train(reference, theirs, 2)
    assert error(ours, theirs) < 1e-12


def test_a_group_added_later_is_stepped_from_then_on() -> None:
    first, second = parameter_with_gradient(), parameter_with_gradient()
    optimizer = Adam([first])
    optimizer.step()

    optimizer.add_param_group({"params": [second], "lr": 0.5})
    optimizer.step()

    assert [float(optimizer.state[p]["step"]) for p in (first, second)] == [2, 1]
    assert optimizer.param_groups[1]["lr"] == 0.5
    assert optimizer.param_groups[1]["betas"] == (0.9, 0.999)
    torch.testing.assert_close(second, torch.full((3,), 0.5), atol=1e-6, rtol=0)


def test_hyperparameters_are_read_in_every_step() -> None:
    ours, theirs = parameters(), parameters()
    optimizers = [Adam(ours), torch.optim.Adam(theirs, foreach=False)]
    for params, optimizer in zip((ours, theirs), optimizers, strict=True):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        for step in steps_with_gradients(params, 6):
            optimizer.param_groups[0]["weight_decay"] = 0.1 * step
            optimizer.step()
            scheduler.step()

    assert error(ours, theirs) < 1e-12


@pytest.mark.parametrize(
    "options", [{"fused": True, "foreach": True}, {"fused": True, "differentiable": True}]
)
def test_contradicting_options_raise_torchs_error(options: dict[str, bool]) -> None:
    messages = []
    for cls in (Adam, torch.optim.Adam):
        with pytest.raises(RuntimeError) as caught:
            cls([parameter_with_gradient()], **options)
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "params", [[], torch.ones(2), [1], [{"params": {parameter_with_gradient()}}]]
)
def test_wrong_parameters_raise_torchs_error(params: Any) -> None:
    messages = []
    for cls in (Adam, torch.optim.Adam):
        with pytest.raises((TypeError, ValueError)) as caught:
            cls(params)
        messages.append((caught.type, str(caught.value)))

    assert messages[0] == messages[1]


def test_an_optimizer_unscales_gradients_only_with_fused_true() -> None:
    assert not hasattr(Adam([parameter_with_gradient()]), "_step_supports_amp_scaling")
    assert Adam([parameter_with_gradient()], fused=True)._step_supports_amp_scaling is True


@pytest.mark.parametrize("fused", [None, True])
def test_a_grad_scaler_skips_a_step_with_infinities_and_unscales_others(fused: bool | None) -> None:
    param = parameter_with_gradient()
    optimizer = Adam([param], lr=0.5, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((param * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    assert float(optimizer.state[param]["step"]) == 1
    assert param.grad is not None
    assert param.grad.tolist() == [1.0] * 3
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.5))


def test_init_state_creates_the_state_and_takes_no_step() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = Adam(ours, amsgrad=True)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer.add_param_group({"params": [frozen]})

    optimizer.init_state()

    assert error(ours, theirs) == 0
    assert frozen not in optimizer.state
    for param in ours:
        entry = optimizer.state[param]
        assert list(entry) == ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        assert all((value == 0).all() for value in entry.values())
    train(optimizer, ours, 3)
    train(torch.optim.Adam(theirs, amsgrad=True), theirs, 3)
    assert error(ours, theirs) < 1e-12


def test_a_step_under_torch_compile_equals_torchs() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = Adam(ours)

    compiled = torch.compile(optimizer.step, backend="eager")
    for _ in steps_with_gradients(ours, 4):
        with use_lowering("forloop"):
            compiled()
    train(torch.optim.Adam(theirs, foreach=False), theirs, 4)

    assert error(ours, theirs) < 1e-12


def test_one_optimizer_per_parameter_steps_in_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    twin = copy.deepcopy(model)
    optimizers = {param: Adam([param]) for param in model.parameters()}

    def take_step(param: torch.Tensor) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(take_step)
    reference = torch.optim.Adam(twin.parameters())
    for seed in range(3):
        torch.manual_seed(seed)
        batch = torch.randn(8, 3)
        model(batch).pow(2).sum().backward()
        reference.zero_grad()
        twin(batch).pow(2).sum().backward()
        reference.step()

    assert error(list(model.parameters()), list(twin.parameters())) < 1e-6
