"""Test a warm-up around keyed optimizers: which rates it sets, and what it saves."""

import copy
import logging
from typing import Any

import pytest
import torch
from keyed.models import IDS, LIBRARIES, NoOpOptimizer, content, keyed_adamw, parameters, train
from logs import collect_logs

from optgen.keyed import (
    CombinedOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    WarmupOptimizer,
    WarmupPolicy,
    WarmupStage,
)

LINEAR = WarmupStage(WarmupPolicy.LINEAR, max_iters=4, value=0.0)


def optimizer_with_rates(*rates: Any, key: str = "lr") -> NoOpOptimizer:
    """Return a keyed optimizer with a group for each rate; for None the group has no rate."""
    params = {f"p{i}": torch.nn.Parameter(torch.ones(1)) for i in range(len(rates))}
    groups = [{"params": [param]} for param in params.values()]
    for group, rate in zip(groups, rates, strict=True):
        group.update({} if rate is None else {key: rate})
    return NoOpOptimizer(params, {}, groups)


def rates(optimizer: KeyedOptimizer, key: str = "lr") -> list[float]:
    return [float(group[key]) for group in optimizer.param_groups]


def combined_optimizer(library: Any = torch.optim) -> CombinedOptimizer:
    sgd = KeyedOptimizerWrapper(parameters(1), lambda params: library.SGD(params, lr=0.1))
    return CombinedOptimizer(
        [("dense", keyed_adamw(parameters(), library, lr=0.1)), ("tables", sgd)]
    )


def test_the_rate_is_set_at_once_and_after_every_step() -> None:
    optimizer = WarmupOptimizer(optimizer_with_rates(0.1), [LINEAR], lr=2.0)
    rates_of_steps = [rates(optimizer)[0]]
    for _ in range(6):
        optimizer.step()
        rates_of_steps += rates(optimizer)

    assert rates_of_steps == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
def test_training_equals_training_with_the_warmups_rates(library: Any) -> None:
    with_warmup = WarmupOptimizer(keyed_adamw(parameters(), library, lr=0.7), [LINEAR], lr=0.1)
    plain = keyed_adamw(parameters(), library, lr=0.7)
    train(with_warmup, 6)
    generator_seed = 1
    for step, rate in enumerate([0.0, 0.25, 0.5, 0.75, 1.0, 1.0]):
        plain.param_groups[0]["lr"] = 0.1 * rate
        generator = torch.Generator().manual_seed(generator_seed)
        for _ in range(step + 1):  # the gradients of this step
            for param in plain.params.values():
                param.grad = torch.randn(param.shape, generator=generator)
        plain.step()

    assert content(dict(plain.params)) == content(
        {name: with_warmup.params[name] for name in plain.params}
    )


def test_the_warmups_state_is_an_entry_beside_those_of_parameters() -> None:
    params = parameters()
    optimizer = WarmupOptimizer(keyed_adamw(params), [LINEAR])
    assert list(optimizer.params) == ["weight", "bias", "__warmup"]
    assert optimizer.params["__warmup"].numel() == 0
    assert optimizer.state_dict() == {"state": {}}
    train(optimizer, 5)

    checkpoint = optimizer.state_dict()["state"]
    assert list(checkpoint) == ["weight", "bias", "__warmup"]
    assert checkpoint["__warmup"].keys() == {"warmup"}
    assert checkpoint["__warmup"]["warmup"].dtype == torch.int64
    assert checkpoint["__warmup"]["warmup"].tolist() == [5, 1]
    assert optimizer.state[optimizer.params["__warmup"]]["warmup"].tolist() == [5, 1]


def test_the_inner_optimizer_keeps_its_own_parameters() -> None:
    params = parameters()
    inner = keyed_adamw(params, torch.optim)
    train(WarmupOptimizer(inner, [LINEAR]), 2)

    assert list(params) == ["weight", "bias"]
    assert inner._optimizer.state.keys() == set(params.values())
    # torch's own state_dict still works.
    assert inner._optimizer.state_dict()["state"].keys() == {0, 1}
    assert list(inner.state_dict()["state"]) == ["weight", "bias", "__warmup"]


def test_a_duplicate_name_is_refused() -> None:
    inner = WarmupOptimizer(keyed_adamw(parameters()), [LINEAR], param_name="mine")
    with pytest.raises(ValueError, match=r"^Duplicate param key mine$"):
        WarmupOptimizer(inner, [LINEAR], param_name="mine")
    outer = WarmupOptimizer(inner, [LINEAR])
    train(outer, 1)

    assert list(outer.state_dict()["state"]) == ["weight", "bias", "mine", "__warmup"]


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
@pytest.mark.parametrize("make", [lambda lib: keyed_adamw(parameters(), lib), combined_optimizer])
def test_resumed_training_equals_uninterrupted_training(make: Any, library: Any) -> None:
    stages = [LINEAR, WarmupStage(WarmupPolicy.STEP, max_iters=9, value=0.5, decay_iters=2)]
    uninterrupted, resumed = (WarmupOptimizer(make(library), stages, lr=0.1) for _ in range(2))
    train(uninterrupted, 6)
    saved = copy.deepcopy(uninterrupted.state_dict())
    resumed.init_state()
    resumed.load_state_dict(saved)
    for name, param in resumed.params.items():
        param.data.copy_(uninterrupted.params[name])
    assert content(saved["state"]["__warmup"]["warmup"]) == [6, 1]
    assert rates(resumed) == rates(uninterrupted)
    for each in (uninterrupted, resumed):
        train(each, 4, seed=5)

    assert content(resumed.state_dict()) == content(uninterrupted.state_dict())
    assert content(dict(resumed.params)) == content(dict(uninterrupted.params))


def test_a_warmup_with_other_stages_resumes_at_its_step() -> None:
    old = WarmupOptimizer(
        optimizer_with_rates(1.0), [WarmupStage(max_iters=1), WarmupStage(max_iters=2)]
    )
    for _ in range(5):
        old.step()
    new = WarmupOptimizer(optimizer_with_rates(1.0), [WarmupStage(max_iters=10, value=0.0)], lr=1.0)
    new.init_state()
    new.load_state_dict(old.state_dict())

    assert rates(new) == [0.5]


def test_groups_keep_the_ratio_of_their_rates() -> None:
    inner = optimizer_with_rates(0.2, 0.02, 0.6, None, 0.2)
    optimizer = WarmupOptimizer(inner, [WarmupStage(max_iters=2, value=0.5)], lr=1.0)
    assert rates(optimizer) == pytest.approx([0.5, 0.05, 1.5, 0.5, 0.5])
    optimizer.step()
    optimizer.step()
    assert rates(optimizer) == pytest.approx([1.0, 0.1, 3.0, 1.0, 1.0])
    copied = copy.deepcopy(optimizer)
    copied.load_state_dict(copied.state_dict())
    assert rates(copied) == pytest.approx([1.0, 0.1, 3.0, 1.0, 1.0])


def test_a_rate_of_zero_beside_another_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"param_groups\[0\] has a learning rate of 0, and .*\[1\]"
    ):
        WarmupOptimizer(optimizer_with_rates(0.0, 0.1), [LINEAR])
    assert rates(WarmupOptimizer(optimizer_with_rates(0.0, 0.0), [], lr=0.5)) == [0.5, 0.5]


def test_the_rate_is_constant_after_the_last_stage() -> None:
    down = WarmupStage(WarmupPolicy.POLY, max_iters=4, value=1.0, decay_iters=8)
    for options, rate_after in (({}, 0.5), ({"final": 1.0}, 1.0)):
        optimizer = WarmupOptimizer(optimizer_with_rates(1.0), [down], lr=1.0, **options)
        for _ in range(4):
            optimizer.step()
        assert rates(optimizer) == [0.5]
        optimizer.step()
        assert rates(optimizer) == [rate_after]


def test_the_rate_may_have_another_key() -> None:
    optimizer = WarmupOptimizer(
        optimizer_with_rates(0.1, key="eta"), [LINEAR], lr=2.0, lr_param="eta"
    )
    optimizer.step()

    assert rates(optimizer, "eta") == [0.5]
    assert "lr" not in optimizer.param_groups[0]


def test_a_tensor_rate_is_set_in_place() -> None:
    shared = torch.tensor(0.1)
    inner = optimizer_with_rates(shared, shared)
    optimizer = WarmupOptimizer(inner, [LINEAR], lr=2.0)
    optimizer.step()

    assert all(group["lr"] is shared for group in inner.param_groups)
    assert shared.item() == 0.5


def test_init_state_counts_no_step() -> None:
    optimizer = WarmupOptimizer(keyed_adamw(parameters()), [LINEAR], lr=1.0)
    optimizer.init_state()
    assert optimizer.state_dict()["state"]["__warmup"]["warmup"].tolist() == [0, 0]
    assert rates(optimizer) == [0.0]
    train(optimizer, 1)
    optimizer.init_state()
    assert optimizer.state_dict()["state"]["__warmup"]["warmup"].tolist() == [1, 0]


def test_groups_and_warmup_are_saved_together() -> None:
    old, new = (WarmupOptimizer(optimizer_with_rates(1.0), [LINEAR], lr=1.0) for _ in range(2))
    for each in (old, new):
        each.save_param_groups(True)
        each.init_state()
    old.step()
    checkpoint = old.state_dict()
    assert checkpoint["param_groups"] == [{"params": ["p0"], "lr": 0.25}]
    new.load_state_dict(checkpoint)
    assert rates(new) == [0.25]


def test_the_end_of_a_stage_and_a_load_are_logged() -> None:
    optimizer = WarmupOptimizer(optimizer_with_rates(1.0), [WarmupStage(max_iters=1)])
    with collect_logs("optgen.keyed.warmup", level=logging.INFO) as logged:
        optimizer.step()
        assert not logged
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())

    first, *others = [record.getMessage() for record in logged]
    assert first.startswith("Warmup Optimizer finishing WarmupStage(policy=<Warmup")
    assert others == ["Warmup Optimizer set to iteration 2"]
