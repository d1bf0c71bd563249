"""Test loading by name: everything is checked first, and tensors are written in place."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from keyed.models import IDS, LIBRARIES, content, keyed_adamw, parameters, train
from torch import Tensor

from optgen.keyed import (
    CombinedOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    OptimizerWrapper,
    WarmupOptimizer,
)

Change = Callable[[dict[str, Any]], object]


def trained_adam(
    steps: int = 2, library: Any = torch.optim, **options: Any
) -> KeyedOptimizerWrapper:
    """Return a keyed Adam of two groups after some steps. It saves its groups."""

    def factory(params: list[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.5}]
        optimizer: torch.optim.Optimizer = library.Adam(groups, lr=0.1, **options)
        return optimizer

    keyed = KeyedOptimizerWrapper(parameters(), factory)
    keyed.save_param_groups(True)
    train(keyed, steps)
    return keyed


def change_value(path: tuple[Any, ...], change: Callable[[Any], Any]) -> Change:
    """Return a function that changes one value of a checkpoint."""

    def apply(checkpoint: Any) -> None:
        for key in path[:-1]:
            checkpoint = checkpoint[key]
        checkpoint[path[-1]] = change(checkpoint[path[-1]])

    return apply


def rename_key(path: tuple[Any, ...], old: str, new: str) -> Change:
    """Return a function that gives a value of a checkpoint another key."""

    def apply(checkpoint: Any) -> None:
        for key in path:
            checkpoint = checkpoint[key]
        checkpoint[new] = checkpoint.pop(old)

    return apply


WEIGHT = ("state", "weight")
MISMATCHES: dict[str, tuple[Change, str]] = {
    "parameters": (lambda p: p["state"].pop("bias"), "Different parameter count: 2 vs 1"),
    "name": (rename_key(("state",), "bias", "z"), "Parameter bias not found"),
    "entries": (lambda p: p["state"]["bias"].pop("step"), "Different state size: 3 vs 2"),
    "entry": (
        rename_key(WEIGHT, "step", "steps"),
        'Different entries: ["step", "exp_avg", "exp_avg_sq"] vs ["exp_avg", "exp_avg_sq", '
        '"steps"] for the path of ["weight"]',
    ),
    "no dict": (
        change_value(WEIGHT, lambda _: [1, 2, 3]),
        'Different kind: dict vs list for the path of ["weight"]',
    ),
    "shape": (
        change_value(("state", "bias", "exp_avg"), lambda t: t.new_ones(3)),
        'Different shape: torch.Size([2]) vs torch.Size([3]) for the path of ["bias", "exp_avg"]',
    ),
    "broadcastable shape": (
        change_value((*WEIGHT, "exp_avg"), lambda t: t[:1]),
        "Different shape: torch.Size([3, 2]) vs torch.Size([1, 2]) for the path of "
        '["weight", "exp_avg"]',
    ),
    "number for a tensor": (
        change_value((*WEIGHT, "step"), float),
        'Different kind: Tensor vs float for the path of ["weight", "step"]',
    ),
    "complex": (
        change_value((*WEIGHT, "exp_avg"), lambda t: t.to(torch.complex64)),
        'Different dtype: torch.float32 vs torch.complex64 for the path of ["weight", "exp_avg"]',
    ),
    "groups": (lambda p: p["param_groups"].pop(), "Different param_groups count: 2 vs 1"),
    "group": (
        change_value(("param_groups", 1, "params"), lambda _: ["bias", "z"]),
        "Group bias not found",
    ),
    "group size": (
        lambda p: p["param_groups"][1].pop("lr"),
        "Different param_group size: ",
    ),
    "group key": (
        rename_key(("param_groups", 1), "lr", "rate"),
        "Group key lr not found for group bias",
    ),
}


@pytest.mark.parametrize("wrap", [lambda each: each, OptimizerWrapper], ids=["", "wrapped"])
@pytest.mark.parametrize(("change", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_the_error_names_the_difference_and_nothing_is_loaded(
    change: Change, message: str, wrap: Any
) -> None:
    optimizer = wrap(trained_adam())
    checkpoint = copy.deepcopy(trained_adam(3).state_dict())
    change(checkpoint)
    before = content(optimizer.state_dict())
    with pytest.raises(ValueError) as caught:
        optimizer.load_state_dict(checkpoint)

    assert str(caught.value).startswith(message)
    assert content(optimizer.state_dict()) == before


def test_errors_of_a_combined_optimizer_have_full_names() -> None:
    optimizer = CombinedOptimizer([("a", trained_adam()), ("b", trained_adam())])
    before = content(optimizer.state_dict())
    checkpoint = copy.deepcopy(
        CombinedOptimizer([("a", trained_adam(3)), ("b", trained_adam(3))]).state_dict()
    )
    checkpoint["state"]["b.weight"]["exp_avg"] = torch.ones(1)
    with pytest.raises(ValueError, match=r'for the path of \["b.weight", "exp_avg"\]'):
        optimizer.load_state_dict(checkpoint)

    assert content(optimizer.state_dict()) == before


def test_missing_groups_are_refused() -> None:
    optimizer, checkpoint = trained_adam(), trained_adam(3).state_dict()
    del checkpoint["param_groups"]
    before = content(optimizer.state_dict())
    with pytest.raises(KeyError, match="param_groups: the state to load was saved without them"):
        optimizer.load_state_dict(checkpoint)
    assert content(optimizer.state_dict()) == before
    optimizer.save_param_groups(False)
    optimizer.load_state_dict(checkpoint)
    assert content(optimizer.state_dict()["state"]) == content(checkpoint["state"])


def test_a_dict_that_is_no_checkpoint_is_refused() -> None:
    with pytest.raises(KeyError, match=r'its state_dict\(\) returned, but this has \["model"\]'):
        trained_adam().load_state_dict({"model": {}})


def test_a_load_needs_existing_state() -> None:
    new, old = trained_adam(0), trained_adam()
    with pytest.raises(ValueError, match="Different parameter count: 0 vs 2"):
        new.load_state_dict(old.state_dict())
    with pytest.raises(ValueError, match="Different parameter count: 2 vs 0"):
        old.load_state_dict(new.state_dict())
    new.init_state()
    new.load_state_dict(old.state_dict())
    assert content(new.state_dict()) == content(old.state_dict())


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
def test_tensors_are_written_in_place(library: Any) -> None:
    optimizer, checkpoint = trained_adam(1, library), copy.deepcopy(trained_adam(3).state_dict())
    tensors = [value for entry in optimizer.state.values() for value in entry.values()]
    expected = checkpoint["state"]["weight"]["exp_avg"].clone()
    checkpoint["state"]["weight"]["exp_avg"] = expected.double()  # is converted to float32
    optimizer.load_state_dict(checkpoint)

    assert all(
        value is tensor
        for value, tensor in zip(
            [value for entry in optimizer.state.values() for value in entry.values()],
            tensors,
            strict=True,
        )
    )
    assert torch.equal(optimizer.state_dict()["state"]["weight"]["exp_avg"], expected)
    assert optimizer.state_dict()["state"]["weight"]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
def test_resumed_training_equals_uninterrupted_training(library: Any) -> None:
    uninterrupted, optimizer = trained_adam(2, library), trained_adam(2, library)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = trained_adam(0, library)
    resumed.init_state()
    for name, param in resumed.params.items():
        param.data.copy_(optimizer.params[name])
    resumed.load_state_dict(saved)
    for each in (uninterrupted, resumed):
        train(each, 2, seed=5)

    assert content(dict(resumed.params)) == content(dict(uninterrupted.params))
    assert content(resumed.state_dict()) == content(uninterrupted.state_dict())


@pytest.mark.parametrize(("theirs", "ours"), [LIBRARIES, LIBRARIES[::-1]], ids=IDS)
def test_torchs_class_and_ours_exchange_states(theirs: Any, ours: Any) -> None:
    source, target = trained_adam(3, theirs), trained_adam(1, ours)
    for each in (source, target):
        each.save_param_groups(False)
    target.load_state_dict(source.state_dict())

    assert content(target.state_dict()) == content(source.state_dict())


def test_groups_are_matched_by_their_parameters() -> None:
    source, target = trained_adam(), trained_adam()
    source.param_groups[0]["lr"], source.param_groups[1]["lr"] = 1.0, [2.0]
    checkpoint = source.state_dict()
    checkpoint["param_groups"].reverse()
    params = [group["params"] for group in target.param_groups]
    target.load_state_dict(checkpoint)

    assert [group["lr"] for group in target.param_groups] == [1.0, [2.0]]
    assert target.param_groups[1]["lr"] is not checkpoint["param_groups"][0]["lr"]
    assert all(g["params"] is p for g, p in zip(target.param_groups, params, strict=True))


def test_parameters_of_a_group_may_be_in_any_order() -> None:
    params = parameters()
    optimizer = KeyedOptimizer(params, {}, [{"params": list(params.values()), "lr": 1.0}])
    optimizer.save_param_groups(True)
    optimizer.load_state_dict(
        {"state": {}, "param_groups": [{"params": ["weight", "bias"], "lr": 2.0}]}
    )

    assert optimizer.param_groups[0]["lr"] == 2.0


def test_parameters_without_state_are_skipped() -> None:
    params = parameters()
    optimizer = KeyedOptimizer(params, {params["bias"]: {"m": torch.zeros(2)}}, [])
    assert list(params) == ["weight", "bias"]
    optimizer.load_state_dict({"state": {"bias": {"m": torch.ones(2)}}})

    assert (optimizer.state[params["bias"]]["m"] == 1).all()


def test_a_load_calls_every_optimizers_hook_once() -> None:
    calls: list[str] = []

    class Recorder(OptimizerWrapper):
        def __init__(self, optimizer: KeyedOptimizer, name: str) -> None:
            super().__init__(optimizer)
            self.name = name

        def post_load_state_dict(self) -> None:
            super().post_load_state_dict()
            calls.append(self.name)

    inner = Recorder(keyed_adamw(parameters()), "inner")
    outer = Recorder(OptimizerWrapper(inner), "outer")
    outer.load_state_dict(outer.state_dict())
    assert calls == ["inner", "outer"]
    calls.clear()
    combined = CombinedOptimizer(
        [("a", outer), ("b", WarmupOptimizer(Recorder(keyed_adamw(parameters()), "b"), []))]
    )
    combined.load_state_dict(combined.state_dict())
    assert calls == ["inner", "outer", "b"]


def test_a_state_that_was_filled_in_place_is_loaded() -> None:
    optimizer = trained_adam()
    checkpoint = optimizer.state_dict()
    checkpoint["state"]["weight"]["exp_avg"].fill_(7.0)
    optimizer.load_state_dict(checkpoint)

    assert (optimizer.state[optimizer.params["weight"]]["exp_avg"] == 7.0).all()
