"""Take 3,000 steps with bfloat16 parameters: updates and states have their sizes of float32.

A running mean with a decay near 1 stands still if its dtype cannot hold its increments.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import optgen
from optgen import modifiers, optim
from optgen.compositions import list_modifiers
from optgen.optim._published import PUBLISHED
from optgen.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS, SHAPE = 3000, (16, 8)
BOUND = 0.1
OPTIONS: dict[str, dict[str, Any]] = {
    key: {"rank": 4} for key in ("APOLLO", "Dion", "Fira", "GaLore")
}
INPUTS = {"AdaHessian": "hessian", "Sophia": "hessian"}
RESTS = {"compensation", "rest"}
"""The keys of states that hold what rounding loses. In float32 they are 0 or much smaller."""
MIRRORS = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam"),
    *("RAdam", "RMSprop", "Rprop", "SGD"),
)
"""Classes of torch's names. Their states have torch's dtypes, which do not hold every mean."""
INSIGNIFICANT = {
    "Rprop": "noise shrinks its steps until parameters of 16 bits do not move",
    "DAdaptAdam": "the parameters return in each step, so its distance does not grow",
    "Prodigy": "the parameters return in each step, so its distance does not grow",
    "AdaBound": "its bounds make late steps a thousandth of the weights, which 16 bits round",
    "AdamG": "late steps are a ten-thousandth of the weights, which 16 bits round",
}
"""Rules whose updates say nothing here. Their states are compared."""
LOWERINGS: dict[str, dict[str, Any]] = {"forloop": {"foreach": False}, "default": {}}


def draw(generator: torch.Generator) -> Tensor:
    """Draw a gradient that bfloat16 holds, whose columns have sizes from 1e-3 to 0.1."""
    scales = torch.logspace(-1, 1, SHAPE[1]) * 1e-2
    return (torch.randn(SHAPE, generator=generator) * scales).bfloat16()


def sizes(
    cls: Any, dtype: torch.dtype, options: Mapping[str, Any], inputs: str = "", steps: int = STEPS
) -> dict[str, float]:
    """Return the sizes of the last update and of the states after steps from one point."""
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16().to(dtype)
    param, generator = start.clone().requires_grad_(), torch.Generator().manual_seed(1)
    optimizer = cls([param], **options)
    for _ in range(steps):
        with torch.no_grad():
            param.copy_(start)
        param.grad = draw(generator).to(dtype)
        given = {inputs: [draw(generator).to(dtype).square()]} if inputs else {}
        optimizer.step(**given)
    states = {key: size(value) for key, value in optimizer.state[param].items()}
    return {"update": size(param.detach() - start), **states}


def size(x: Any) -> float:
    """Return the norm of a tensor of numbers of any dtype."""
    return float(torch.as_tensor(x).detach().double().norm())


def differing(actual: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios of sizes that differ by more than the bound."""
    ratios = {
        key: actual[key] / expected[key] for key in expected if expected[key] and key in actual
    }
    return {
        key: ratio for key, ratio in ratios.items() if abs(ratio - 1) > BOUND and key not in RESTS
    }


def compare_rule(name: str, cls: Any, lowering: str) -> None:
    """Compare a rule's sizes in bfloat16 with those in float32, with steps as long as weights."""
    options = {**OPTIONS.get(name, {}), **LOWERINGS[lowering]}
    inputs = INPUTS.get(name, "")
    length = sizes(cls, torch.float32, {**options, "lr": 1.0}, inputs, steps=100)["update"]
    options["lr"] = SHAPE[0] ** 0.5 * SHAPE[1] ** 0.5 / length
    expected = sizes(cls, torch.float32, options, inputs)
    if name in INSIGNIFICANT:
        del expected["update"]
    assert not differing(sizes(cls, torch.bfloat16, options, inputs), expected)


@pytest.mark.one_case_in(24)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", sorted(PUBLISHED.values()))
def test_updates_and_states_of_published_rules(name: str, lowering: str) -> None:
    compare_rule(name, getattr(optim, name), lowering)


@pytest.mark.one_case_in(13)
@pytest.mark.parametrize("name", MIRRORS)
def test_state_dtype_repairs_mirrors_of_torch(name: str) -> None:
    cls = optgen.compose(name, modifiers.state_dtype("float32"))
    compare_rule(name, cls, "forloop")


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("name", MIRRORS)
def test_mirrors_of_torch_have_states_of_the_parameters_dtype(name: str) -> None:
    param = torch.ones(SHAPE, dtype=torch.bfloat16, requires_grad=True)
    param.grad = torch.ones_like(param)
    optimizer = getattr(optim, name)([param])
    optimizer.step()
    tensors = [value for value in optimizer.state[param].values() if value.ndim]
    assert {value.dtype for value in tensors} <= {torch.bfloat16}


STORING = {"kahan", "master", "stochastic_rounding", "schedule_free"}
ARGUMENTS: dict[str, tuple[float, ...]] = {"accumulate": (4,), "clip_value": (10.0,)}


def trained(cls: Any, dtype: torch.dtype) -> dict[str, float]:
    """Train towards 3, and return the sizes of the weights in each mode and of the states."""
    param = torch.zeros(64, 2, dtype=dtype, requires_grad=True)
    optimizer, generator = cls([param], lr=0.01, foreach=False), torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        noise = torch.randn(param.shape, generator=generator)
        param.grad = (param.detach().float() - 3 + 0.5 * noise).bfloat16().to(dtype)
        optimizer.step()
    result = {"weights": size(param)}
    result |= {key: size(value) for key, value in optimizer.state[param].items()}
    if hasattr(optimizer, "eval"):
        optimizer.eval()
        result["weights in eval mode"] = size(param)
    return result


def compare_training(*parts: Any) -> None:
    """Compare weights and states after training in bfloat16 with those in float32."""
    cls = optgen.compose(*parts)
    assert not differing(trained(cls, torch.bfloat16), trained(cls, torch.float32))


@pytest.mark.one_case_in(15)
@pytest.mark.parametrize("name", list_modifiers())
def test_weights_and_states_of_modifiers(name: str) -> None:
    modifier = getattr(modifiers, name)(*ARGUMENTS.get(name, ()))
    store = () if name in STORING else (modifiers.kahan,)
    compare_training("adamw", modifier, *store, modifiers.state_dtype("float32"))


@pytest.mark.one_case_in(9)
@pytest.mark.parametrize("store", ["kahan", "master", "stochastic_rounding"])
@pytest.mark.parametrize("average", ["ema", "lookahead", "ema_nesterov"])
def test_averages_beside_each_way_to_store_weights(average: str, store: str) -> None:
    parts = (getattr(modifiers, average), getattr(modifiers, store))
    compare_training("adamw", *parts, modifiers.state_dtype("float32"))


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize("store", ["", "kahan", "master", "stochastic_rounding"])
@pytest.mark.parametrize("name", ["ScheduleFreeAdamW", "ScheduleFreeRAdam", "ScheduleFreeSGD"])
def test_averages_of_schedule_free(name: str, store: str) -> None:
    compare_training(getattr(optim, name), *([getattr(modifiers, store)] if store else []))


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_schedule_free_goes_on_with_a_model_that_was_converted(
    steps_before: int, lowering: str
) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = optim.ScheduleFreeSGD(model.parameters(), lr=0.3)

    def train(steps: int) -> None:
        for _ in range(steps):
            for param in model.parameters():
                param.grad = 0.1 * (param.detach() - 3)
            optimizer.step()

    with optgen.use_lowering(lowering):
        train(steps_before)
        model.bfloat16()
        train(1000)
        assert set(optimizer.state[model.weight]) == {"step", "lr_max", "weight_sum", "z", "rest"}
        optimizer.eval()
        assert abs(model.weight.mean().item() - 3) < 0.03  # a plain average stands still at 2.0
        optimizer.train()
        model.float()
        train(1)
    assert not optimizer.param_groups[0]["compensate"]


def test_schedule_free_beside_a_modifier_of_the_update_wants_a_store() -> None:
    cls = optgen.compose("schedule_free_adamw", modifiers.cautious)
    cls([torch.zeros(3)])
    with pytest.raises(ValueError, match="add kahan, master or stochastic_rounding"):
        cls([torch.zeros(3, dtype=torch.bfloat16)])


@pytest.mark.parametrize("name", ["ema", "schedule_free"])
def test_modes_and_back_lose_nothing(name: str) -> None:
    store = () if name in STORING else (modifiers.kahan,)
    cls: Any = optgen.compose("adamw", getattr(modifiers, name), *store)
    params = [torch.zeros(40, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    optimizers, generator = [cls([param], lr=0.01) for param in params], torch.Generator()
    for _ in range(50):
        noise = torch.randn(40, generator=generator)
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = (param.detach().float() - 3 + noise).bfloat16()
            optimizer.step()
        optimizers[0].eval()
        optimizers[0].train()
    states = [optimizer.state[param] for param, optimizer in zip(params, optimizers, strict=True)]
    assert torch.equal(*params)
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("name", ["ema", "schedule_free"])
def test_a_copy_in_eval_mode_goes_back_as_the_original(name: str, copied: Any) -> None:
    store = () if name in STORING else (modifiers.kahan,)
    cls: Any = optgen.compose("adamw", getattr(modifiers, name), *store)
    params = [torch.zeros(40, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    optimizer = cls([{"params": [params[0]]}, {"params": [params[1]], "lr": 0.02}], lr=0.01)
    for _ in range(30):
        for param in params:
            param.grad = param.detach() - 3
        optimizer.step()
    optimizer.eval()
    twin = copied(optimizer)
    for each in (optimizer, twin):
        each.train()
    groups = [each.param_groups for each in (optimizer, twin)]
    for group, other in zip(*groups, strict=True):
        (param,), (mirror,) = group["params"], other["params"]
        assert param is not mirror
        assert torch.equal(param, mirror)
        states = optimizer.state[param], twin.state[mirror]
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_an_average_is_kept_when_a_hyperparameter_of_the_mode_changes() -> None:
    param = torch.zeros(40, dtype=torch.bfloat16, requires_grad=True)
    optimizer = optim.ScheduleFreeAdamW([param], lr=0.05)
    for _ in range(30):
        param.grad = param.detach() - 3
        optimizer.step()
    optimizer.eval()
    average = param.detach().float()
    optimizer.param_groups[0]["betas"] = (0.5, 0.999)
    optimizer.train()
    optimizer.eval()
    torch.testing.assert_close(param.detach().float(), average, rtol=2**-6, atol=0)


def test_weights_loaded_in_eval_mode_are_kept() -> None:
    param = torch.zeros(40, dtype=torch.bfloat16, requires_grad=True)
    cls: Any = optgen.compose("sgd", modifiers.ema)
    optimizer = cls([param], lr=0.01)
    for _ in range(5):
        param.grad = torch.ones_like(param)
        optimizer.step()
    optimizer.eval()
    with torch.no_grad():
        param.fill_(7.0)
    optimizer.train()
    assert optimizer.state[param]["ema"].eq(7.0).all()


def test_a_state_changed_in_eval_mode_is_used() -> None:
    param = torch.zeros(40, dtype=torch.bfloat16, requires_grad=True)
    cls: Any = optgen.compose("sgd", modifiers.ema)
    optimizer = cls([param], lr=0.01)
    for _ in range(5):
        param.grad = torch.ones_like(param)
        optimizer.step()
    optimizer.eval()
    average = param.detach().clone()
    optimizer.state[param]["ema"].fill_(7.0)  # as a checkpoint that is loaded in place does
    optimizer.train()
    assert param.eq(7.0).all()
    assert torch.equal(optimizer.state[param]["ema"], average)


@pytest.mark.parametrize("decay", [None, 0.999], ids=["swa", "ema"])
def test_averaged_models(decay: float | None) -> None:
    averages = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = torch.nn.Linear(4, 4).to(dtype)
        averaged = AveragedModel(model, multi_avg_fn=decay and get_ema_multi_avg_fn(decay))
        for value, count in ((1.0, 1), (3.0, STEPS)):
            torch.nn.init.constant_(model.weight, value)
            for _ in range(count):
                averaged.update_parameters(model)
        assert averaged.module.weight.dtype == dtype
        averages[dtype] = size(averaged.module.weight)
    assert averages[torch.bfloat16] == pytest.approx(averages[torch.float32], rel=BOUND)


def test_an_averaged_model_goes_on_from_loaded_means() -> None:
    model = torch.nn.Linear(4, 4).to(torch.bfloat16)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    averaged.update_parameters(model)
    averaged.update_parameters(model)
    loaded = {key: torch.full_like(value, 8) for key, value in averaged.state_dict().items()}
    averaged.load_state_dict(loaded)
    torch.nn.init.zeros_(model.weight)
    averaged.update_parameters(model)
    assert averaged.module.weight.eq(4).all()


def test_checkpoints_of_states_of_16_bits_load() -> None:
    param = torch.ones(SHAPE, dtype=torch.bfloat16, requires_grad=True)
    param.grad = torch.ones_like(param)
    optimizer = optim.CAME([param])
    optimizer.step()
    saved = optimizer.state_dict()
    old = {
        key: value.bfloat16() if value.ndim else value for key, value in saved["state"][0].items()
    }
    optimizer.load_state_dict({**saved, "state": {0: old}})
    optimizer.step()
    dtypes = {value.dtype for value in optimizer.state[param].values() if value.ndim}
    assert dtypes == {torch.float32}


@pytest.mark.parametrize("scale", [30.0, 1e4])
@pytest.mark.parametrize("name", ["Kron", "Shampoo", "OneSidedShampoo"])
def test_large_gradients_in_float16_overflow_no_sum_of_squares(name: str, scale: float) -> None:
    moves = []
    for dtype in (torch.float32, torch.float16):
        param = torch.zeros(16, 16, dtype=dtype, requires_grad=True)
        optimizer, generator = getattr(optim, name)([param]), torch.Generator().manual_seed(1)
        for _ in range(5):
            param.grad = (scale * torch.randn(param.shape, generator=generator)).half().to(dtype)
            optimizer.step()
        moves.append(size(param))
    assert moves[1] == pytest.approx(moves[0], rel=0.01)
