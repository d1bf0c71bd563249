"""Cast a model after its optimizer was made: what depends on dtypes follows."""

from typing import Any

import pytest
import torch

import optgen
from optgen import modifiers, optim
from optgen.keyed.create_state import create_state

CLASSES = {
    "ScheduleFreeAdamW": optim.ScheduleFreeAdamW,
    "ScheduleFreeSGD": optim.ScheduleFreeSGD,
    "composed": optgen.compose("adamw", modifiers.schedule_free),
}


def train(optimizer: Any, model: torch.nn.Linear, steps: int) -> None:
    for step in range(steps):
        for index, param in enumerate(model.parameters()):
            wave = torch.sin(torch.arange(param.numel()) + step + index).view(param.shape)
            param.grad = (param.detach().float() - 3 + wave).to(param.dtype)
        optimizer.step()


def made(name: str, **options: Any) -> tuple[torch.nn.Linear, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).bfloat16().float()
    return model, CLASSES[name](model.parameters(), lr=1e-3, **options)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_model_cast_before_the_first_step_is_compensated(name: str, lowering: str) -> None:
    weights = []
    for is_cast_first in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4).bfloat16()
        model = model if is_cast_first else model.float()
        optimizer: Any = CLASSES[name](model.parameters(), lr=1e-3)
        with optgen.use_lowering(lowering):
            train(optimizer, model.bfloat16(), 5)
        assert "rest" in optimizer.state[model.weight]
        weights.append(model.weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_model_cast_between_steps_does_not_stand_still(lowering: str) -> None:
    means = []
    for cast_at in (None, 10):
        model, optimizer = made("ScheduleFreeAdamW")
        with optgen.use_lowering(lowering):
            train(optimizer, model, 10)
            train(optimizer, model.bfloat16() if cast_at else model, 2000)
        optimizer.eval()
        means.append(model.weight.float().mean().item())
    assert means[1] == pytest.approx(means[0], rel=0.01)


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("name", CLASSES)
def test_what_rounding_took_from_other_weights_is_dropped(
    name: str, lowering: str, is_cast: bool
) -> None:
    weights = []
    for is_dropped in (True, False):
        model, optimizer = made(name)
        with optgen.use_lowering(lowering):
            train(optimizer, model.bfloat16(), 5)
            if is_cast:
                train(optimizer, model.float(), 1)
                model.bfloat16()
            with torch.no_grad():
                for param in model.parameters():
                    rest = optimizer.state[param]["rest"]
                    rest.fill_(0 if is_dropped else 2.0**-10)
                    param.fill_(2.0**-20)
            train(optimizer, model, 1)
        weights.append(model.weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("calls", [("init_state",), ("init_state", "step"), ("create_state",)])
def test_state_that_is_made_early_has_the_compensation(calls: tuple[str, ...]) -> None:
    model, optimizer = made("ScheduleFreeAdamW")
    model.bfloat16()
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    for call in calls:
        create_state(optimizer) if call == "create_state" else getattr(optimizer, call)()
    assert all("rest" in states for states in optimizer.state.values())
    assert optimizer.param_groups[0]["compensate"]


@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_cast_that_the_rule_refuses_is_an_error_that_changes_nothing(steps_before: int) -> None:
    model = torch.nn.Linear(8, 4)
    cls: Any = optgen.compose("schedule_free_adamw", modifiers.cautious)
    optimizer = cls(model.parameters())
    train(optimizer, model, steps_before)
    model.bfloat16()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    counts = [states["step"].item() for states in optimizer.state.values()]
    with pytest.raises(ValueError, match="add kahan, master or stochastic_rounding"):
        train(optimizer, model, 1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [states["step"].item() for states in optimizer.state.values()] == counts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_master_keeps_its_digits_when_the_model_is_cast(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(8, 4)
    optimizer: Any = optgen.compose("adamw", modifiers.master)(model.parameters(), lr=1e-5)
    train(optimizer, model, 3)
    exact = model.weight.detach().clone()
    model.to(dtype)
    model.weight.grad = model.bias.grad = None
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(optimizer.state[model.weight]["master"], exact)
    assert torch.equal(model.weight, exact.to(dtype))


def test_masters_written_into_the_parameters_keep_their_digits() -> None:
    """`model.float()` would give them the rounded weights; the page on master says so."""
    model = torch.nn.Linear(8, 4).bfloat16()
    optimizer: Any = optgen.compose("adamw", modifiers.master)(model.parameters(), lr=1e-5)
    train(optimizer, model, 3)
    exact = optimizer.state[model.weight]["master"].clone()
    for param, states in optimizer.state.items():
        param.grad = None
        param.data = states["master"].clone()
    optimizer.param_groups[0]["lr"] = 0.0
    train(optimizer, model, 1)
    assert torch.equal(model.weight, exact)
    assert torch.equal(optimizer.state[model.weight]["master"], exact)
