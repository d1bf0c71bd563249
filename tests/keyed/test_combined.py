"""Test several keyed optimizers combined into one."""

import copy
from typing import Any

import pytest
import torch
from keyed.models import IDS, LIBRARIES, NoOpOptimizer, content, keyed_adamw, parameters, train
from torch import Tensor

from optgen.keyed import (
    CombinedOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    OptimizerWrapper,
    WarmupOptimizer,
    WarmupStage,
)


def adam_and_sgd(library: Any = torch.optim) -> CombinedOptimizer:
    """Return Adam for one pair of parameters, SGD with momentum for another."""
    sgd = KeyedOptimizerWrapper(
        parameters(1), lambda params: library.SGD(params, lr=0.1, momentum=0.9)
    )
    return CombinedOptimizer([("dense", keyed_adamw(parameters(), library, lr=0.1)), sgd])


@pytest.mark.parametrize(
    ("name", "key", "full"),
    [("", "", ""), ("w", "", "w"), ("", "a", "a"), ("w", "a", "a.w")],
)
def test_names_are_joined(name: str, key: str, full: str) -> None:
    assert CombinedOptimizer.prepend_opt_key(name, key) == full


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
def test_a_step_steps_every_member(library: Any) -> None:
    combined = adam_and_sgd(library)
    train(combined, 3)
    params = [parameters(), parameters(1)]
    members = [
        library.AdamW(list(params[0].values()), lr=0.1),
        library.SGD(list(params[1].values()), lr=0.1, momentum=0.9),
    ]
    reference = KeyedOptimizer({}, {}, [group for each in members for group in each.param_groups])
    reference.step = lambda: [each.step() for each in members]  # type: ignore[method-assign]
    train(reference, 3)

    expected = [*params[0].values(), *params[1].values()]
    assert list(combined.params) == ["dense.weight", "dense.bias", "weight", "bias"]
    found = list(combined.params.values())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert combined.state_dict()["state"].keys() == combined.params.keys()


def test_a_combined_optimizer_shares_state_and_groups_with_its_members() -> None:
    combined = adam_and_sgd()
    combined.save_param_groups(True)
    train(combined, 1)
    checkpoint = copy.deepcopy(combined.state_dict())
    checkpoint["param_groups"][1]["lr"] = 7.0
    checkpoint["state"]["bias"]["momentum_buffer"].fill_(5.0)
    combined.load_state_dict(checkpoint)

    (_, dense), (_, sgd) = combined.optimizers
    assert sgd.param_groups[0]["lr"] == 7.0
    assert (sgd.state[sgd.params["bias"]]["momentum_buffer"] == 5.0).all()
    assert combined.param_groups == [*dense.param_groups, *sgd.param_groups]
    assert set(combined.state) == {*dense.state, *sgd.state}


def test_a_duplicate_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Duplicate param key weight$"):
        CombinedOptimizer([keyed_adamw(parameters()), keyed_adamw(parameters())])
    nested = CombinedOptimizer([("b", keyed_adamw(parameters()))])
    with pytest.raises(ValueError, match=r"^Duplicate param key a\.b\.weight$"):
        CombinedOptimizer([("a", nested), ("a.b", keyed_adamw(parameters()))])


def test_either_all_members_save_their_groups_or_none() -> None:
    saving = optimizer_that_saves_groups()
    with pytest.raises(ValueError, match="Some optimizers save their param_groups") as caught:
        CombinedOptimizer([("a", saving), ("b", keyed_adamw(parameters()))])
    assert isinstance(caught.value, AssertionError)
    # A wrapper has the flag of the optimizer that it wraps.
    combined = CombinedOptimizer(
        [("a", saving), ("b", OptimizerWrapper(optimizer_that_saves_groups()))]
    )
    assert len(combined.state_dict()["param_groups"]) == 2


def optimizer_that_saves_groups() -> KeyedOptimizer:
    keyed: KeyedOptimizer = keyed_adamw(parameters())
    keyed.save_param_groups(True)
    return keyed


def test_a_combined_optimizer_without_members_is_empty() -> None:
    combined = CombinedOptimizer([])
    combined.step()
    combined.save_param_groups(True)

    assert combined.state_dict() == {"state": {}, "param_groups": []}
    assert repr(combined) == ""
    assert combined.scratch_buffers() == ()


def test_a_closure_is_called_once() -> None:
    calls: list[bool] = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        return 3.0

    combined = CombinedOptimizer([("a", adam_and_sgd()), ("b", adam_and_sgd())])
    with torch.no_grad():
        assert combined.step(closure) == 3.0
    assert calls == [True]
    assert combined.step() is None


@pytest.mark.parametrize("wrap", [lambda o: o, OptimizerWrapper, lambda o: WarmupOptimizer(o, [])])
def test_a_step_returns_the_loss_of_its_closure(wrap: Any) -> None:
    calls: list[int] = []

    def closure() -> float:
        calls.append(1)
        return 2.0

    assert wrap(keyed_adamw(parameters())).step(closure) == 2.0
    assert wrap(adam_and_sgd()).step(closure) == 2.0
    assert len(calls) == 2


def test_defaults_are_those_that_all_members_have() -> None:
    assert {"lr", "weight_decay"} <= adam_and_sgd().defaults.keys()
    # Schedulers set betas and momentum in every group if the defaults have them.
    assert not {"betas", "momentum"} & adam_and_sgd().defaults.keys()


def test_zero_grad_sets_to_zeros_or_none() -> None:
    combined = adam_and_sgd()
    train(combined, 1)
    combined.zero_grad(set_to_none=False)
    assert not any(param.grad.any() for param in combined.params.values())  # type: ignore[union-attr]
    combined.zero_grad()
    assert all(param.grad is None for param in combined.params.values())


def test_calls_are_passed_on_to_members() -> None:
    class Recorder(NoOpOptimizer):
        def __init__(self, size: int) -> None:
            params = {f"p{size}": torch.nn.Parameter(torch.ones(1))}
            super().__init__(params, {}, [{"params": list(params.values())}])
            self.calls: list[Any] = []
            self.buffer = torch.empty(size)

        def scratch_buffers(self) -> tuple[Tensor, ...]:
            return (self.buffer,)

        def set_optimizer_step(self, step: int) -> None:
            self.calls.append(step)

        def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
            self.calls.append(params_dict)

    first, second = Recorder(1), Recorder(2)
    without_methods = KeyedOptimizer(parameters(), {}, [])
    combined = CombinedOptimizer([("in", CombinedOptimizer([first, without_methods])), second])
    combined.set_optimizer_step(7)
    combined.update_hyper_parameters({"a": 1})

    assert first.calls == second.calls == [7, {"a": 1}]
    assert combined.scratch_buffers() == (first.buffer, second.buffer)


def test_hooks_of_members_run_with_their_steps() -> None:
    combined, calls = adam_and_sgd(), []
    for key, member in combined.optimizers:
        member.register_step_post_hook(lambda *_, key=key: calls.append(key))
    combined.step()

    assert calls == ["dense", ""]


def test_the_repr_has_all_members() -> None:
    first, second = keyed_adamw(parameters()), keyed_adamw(parameters())

    assert repr(CombinedOptimizer([("a", first), ("b", second)])) == f"a: {first!r},b: {second!r}"


def test_warmups_of_members_are_resumed() -> None:
    def make() -> CombinedOptimizer:
        stages = [WarmupStage(max_iters=10, value=0.0)]
        first, second = (
            WarmupOptimizer(keyed_adamw(parameters()), stages, lr=lr) for lr in (1.0, 2.0)
        )
        return CombinedOptimizer([("a", first), ("b", second)])

    trained, resumed = make(), make()
    train(trained, 3)
    resumed.init_state()
    resumed.load_state_dict(copy.deepcopy(trained.state_dict()))

    assert list(resumed.state_dict()["state"])[2::3] == ["a.__warmup", "b.__warmup"]
    assert [group["lr"] for group in resumed.param_groups] == pytest.approx([0.3, 0.6])
    assert content(resumed.state_dict()) == content(trained.state_dict())
