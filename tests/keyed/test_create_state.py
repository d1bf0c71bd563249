"""Test init_state, which creates state without a step and changes nothing else."""

import copy
from typing import Any

import pytest
import torch
from keyed.models import IDS, LIBRARIES, content, keyed_adamw, parameters, train
from torch import Tensor

from optgen import optim
from optgen.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper

ARGUMENTS: dict[str, dict[str, Any]] = {
    "Adafactor": {"lr": 0.1},
    "Adam": {"lr": 0.1, "amsgrad": True, "weight_decay": 0.5},
    "AdamW": {"lr": 0.1, "weight_decay": 0.5},
    "ASGD": {"lr": 0.1, "weight_decay": 0.5},
    "NAdam": {"lr": 0.1},
    "RMSprop": {"lr": 0.1, "centered": True, "momentum": 0.9},
    "Rprop": {"lr": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5},
}
every_class = pytest.mark.parametrize("name", ARGUMENTS)
every_library = pytest.mark.parametrize("library", LIBRARIES, ids=IDS)


class Foreign(torch.optim.Optimizer):
    """A rule that optgen does not know.

    It has momentum, decay that lr does not scale, and the first weights as a state.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": torch.tensor(0.1), "weight_decay": 0.5, "seen": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["seen"] += 1
            group["more"] = True
            group["lr"].mul_(0.5)
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group)

    def _update(self, param: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state.update(step=0, buffer=torch.zeros_like(param), first=param.clone())
            state["count"] = {"step": 1}
        state["step"] += 1
        state["buffer"].add_(param.grad + group["weight_decay"] * param)
        param.mul_(1 - group["weight_decay"]).sub_(state["buffer"])


def keyed_optimizer(name: str, library: Any) -> KeyedOptimizerWrapper:
    return KeyedOptimizerWrapper(
        parameters(), lambda params: getattr(library, name)(params, **ARGUMENTS[name])
    )


@every_library
@every_class
def test_init_state_changes_neither_weights_nor_later_training(name: str, library: Any) -> None:
    initialized, plain = keyed_optimizer(name, library), keyed_optimizer(name, library)
    initialized.init_state()
    assert content(dict(initialized.params)) == content(dict(plain.params))
    for each in (initialized, plain):
        train(each, 3)

    assert content(dict(initialized.params)) == content(dict(plain.params))
    assert content(initialized.state_dict()) == content(plain.state_dict())


@every_library
@every_class
def test_created_state_can_load_a_checkpoint(name: str, library: Any) -> None:
    old, new = keyed_optimizer(name, library), keyed_optimizer(name, library)
    train(old, 3)
    new.init_state()
    new.load_state_dict(copy.deepcopy(old.state_dict()))

    assert content(new.state_dict()) == content(old.state_dict())


@pytest.mark.parametrize("name", ["Shampoo", "SOAP"])
def test_training_from_created_matrices_stays_finite(name: str) -> None:
    """The first step must compute the matrices: created ones are zeros, without inverse roots."""
    optimizer = KeyedOptimizerWrapper(parameters(), getattr(optim, name))
    optimizer.init_state()
    train(optimizer, 3)

    assert all(param.isfinite().all() for param in optimizer.params.values())


def test_init_state_of_torchs_class_leaves_gradients_of_zeros() -> None:
    optimizer = keyed_optimizer("SGD", torch.optim)
    params = optimizer.params = {**optimizer.params, "frozen": torch.ones(2)}
    optimizer.init_state({"bias"})

    assert params["weight"].grad is not None
    assert not params["weight"].grad.is_sparse
    assert params["bias"].grad is not None
    assert params["bias"].grad.is_sparse
    optimizer.init_state({"weight"})
    assert params["weight"].grad.sparse_dim() == 1  # it has rows, as an embedding's gradient
    assert not params["bias"].grad.to_dense().any()
    assert params["frozen"].grad is None


@every_library
def test_only_torchs_class_has_sparse_state_for_sparse_gradients(library: Any) -> None:
    optimizer = keyed_optimizer("SGD", library)
    optimizer.init_state({"weight"})
    entries = optimizer.state_dict()["state"]

    assert entries["weight"]["momentum_buffer"].is_sparse == (library is torch.optim)
    assert not entries["bias"]["momentum_buffer"].is_sparse
    assert content(dict(optimizer.params)) == content(parameters())


def test_momentum_of_torchs_sgd_begins_with_zeros() -> None:
    def make() -> KeyedOptimizerWrapper:
        options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
        return KeyedOptimizerWrapper(parameters(), lambda p: torch.optim.SGD(p, **options))

    initialized, plain = make(), make()
    initialized.init_state()
    for each in (initialized, plain):
        train(each, 1)

    first, other = (each.state_dict()["state"]["bias"] for each in (plain, initialized))
    assert torch.equal(other["momentum_buffer"], 0.5 * first["momentum_buffer"])


@every_library
def test_frozen_parameters_have_no_state(library: Any) -> None:
    params = parameters()
    params["bias"].requires_grad_(False)
    optimizer = keyed_adamw(params, library)
    optimizer.init_state()

    assert optimizer.state_dict()["state"].keys() == {"weight"}


@every_library
def test_a_rule_without_state_creates_none(library: Any) -> None:
    optimizer = KeyedOptimizerWrapper(parameters(), lambda params: library.SGD(params, lr=0.1))
    optimizer.init_state()

    assert optimizer.state_dict() == {"state": {}}


def test_a_foreign_rule_creates_state() -> None:
    optimizer = KeyedOptimizerWrapper(parameters(), Foreign)
    (group,) = optimizer.param_groups
    lr, keys = group["lr"], list(group)
    optimizer.init_state()

    assert content(dict(optimizer.params)) == content(parameters())
    assert list(group) == keys
    assert group["lr"] is lr
    assert (lr.item(), group["seen"], group["weight_decay"]) == (pytest.approx(0.1), 0, 0.5)
    for name, values in optimizer.state_dict()["state"].items():
        assert values["step"] == 0
        assert not values["buffer"].any()  # no weight has decayed into the buffer
        assert torch.equal(values["first"], optimizer.params[name])


def test_an_init_state_that_fails_changes_nothing() -> None:
    class Failing(Foreign):
        def _update(self, param: Tensor, group: dict[str, Any]) -> None:
            super()._update(param, group)
            raise RuntimeError("failed")

    optimizer = KeyedOptimizerWrapper(parameters(), Failing)
    with pytest.raises(RuntimeError, match="failed"):
        optimizer.init_state()

    assert content(dict(optimizer.params)) == content(parameters())
    assert optimizer.param_groups[0]["seen"] == 0
    assert optimizer.state_dict() == {"state": {}}


@pytest.mark.parametrize("make", [Foreign, torch.optim.AdamW, None])
def test_init_state_keeps_existing_state(make: Any) -> None:
    optimizer = KeyedOptimizerWrapper(parameters(), make) if make else keyed_adamw(parameters())
    train(optimizer, 2)
    before, weights = content(optimizer.state_dict()), content(dict(optimizer.params))
    optimizer.init_state()

    assert content(optimizer.state_dict()) == before
    assert content(dict(optimizer.params)) == weights


def test_a_users_keyed_optimizer_creates_state() -> None:
    class UsersOptimizer(KeyedOptimizer):
        def __init__(self, params: dict[str, Tensor]) -> None:
            super().__init__(params, {}, [{"params": list(params.values()), "lr": 0.1}])

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for param in self.params.values():
                state: Any = self.state
                state.setdefault(param, {"step": torch.tensor(0.0)})["step"] += 1
                param.sub_(0.1)

    optimizer = UsersOptimizer(parameters())
    optimizer.init_state()

    assert content(optimizer.state_dict()["state"]) == {
        "weight": {"step": 0.0},
        "bias": {"step": 0.0},
    }
    assert content(dict(optimizer.params)) == content(parameters())


def test_a_combined_optimizer_takes_full_names() -> None:
    combined = CombinedOptimizer(
        [("a", keyed_optimizer("SGD", torch.optim)), ("b", keyed_optimizer("Adam", torch.optim))]
    )
    combined.init_state({"a.bias"})

    grads = {name: param.grad for name, param in combined.params.items()}
    assert [name for name, grad in grads.items() if grad is not None and grad.is_sparse] == [
        "a.bias"
    ]
    assert combined.state_dict()["state"].keys() == combined.params.keys()
