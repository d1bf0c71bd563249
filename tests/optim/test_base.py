"""Test that every class treats parameters, groups, names and gradients as torch's class does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.classes import (
    closure,
    give_gradients,
    ours_and_torchs,
    outcome,
    parameters,
    takes,
    train,
)
from parity.classes import NAMES, ONE_GROUP_CLASSES
from torch import Tensor
from torch_versions import HAS_2_15

from optgen.runtime.light_optimizer import _UNORDERED_WARNING


def leaf() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2, 2))


def non_leaf() -> Tensor:
    return torch.ones(2, 2, requires_grad=True) * 2


INVALID_PARAMETERS: dict[str, Callable[[], Any]] = {
    "a tensor": leaf,
    "a set in a group": lambda: [{"params": {leaf()}}],
    "an empty list": list,
    "numbers": lambda: [1],
    "a string": lambda: "abc",
    "a non-leaf": lambda: [non_leaf()],
    "one in two groups": lambda: [{"params": [each := leaf()]}, {"params": [each]}],
    "some with names": lambda: [("a", leaf()), leaf()],
    "some groups with names": lambda: [{"params": [("a", leaf())]}, {"params": [leaf()]}],
    "a group that is a tensor": lambda: [{"params": leaf()}, leaf()],
}


@pytest.mark.parametrize("params", INVALID_PARAMETERS)
@pytest.mark.parametrize("name", NAMES)
def test_invalid_parameters_raise_torchs_errors(name: str, params: str) -> None:
    def error(cls: Any) -> Any:
        return outcome(lambda: str(len(cls(INVALID_PARAMETERS[params]()).param_groups)))

    ours, theirs = map(error, ours_and_torchs(name))
    assert ours == theirs
    assert isinstance(theirs, tuple)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_in_a_set_are_accepted_with_one_warning(name: str) -> None:
    """The warning has the text of torch 2.15. Older versions do not warn."""
    ours, theirs = ours_and_torchs(name)
    with pytest.warns(FutureWarning, match="ordering of tensors in sets will change") as caught:
        assert len(ours({leaf()}).param_groups) == 1
    assert [str(warning.message) for warning in caught] == [_UNORDERED_WARNING]

    if HAS_2_15:
        with pytest.warns(FutureWarning) as torchs:
            theirs({leaf()})
        assert str(torchs[0].message) == _UNORDERED_WARNING


@pytest.mark.parametrize("collection", [list, tuple, frozenset, dict.fromkeys, iter])
def test_other_collections_are_accepted_without_a_warning(collection: Any) -> None:
    """Torch does not warn of a frozenset either."""
    for cls in ours_and_torchs("SGD"):
        assert len(cls(collection([leaf()])).param_groups) == 1


def adder(group: Callable[[], Any], first: Callable[[], Any] = leaf) -> Callable[[Any], Any]:
    """Return a function that adds a group to an optimizer of a class, and counts its groups."""

    def add(cls: Any) -> Any:
        optimizer = cls([first()])
        optimizer.add_param_group(group())
        return len(optimizer.param_groups)

    return add


ADDED_GROUPS: dict[str, Callable[[Any], Any]] = {
    "no dict": adder(lambda: [leaf()]),
    "a tensor": adder(lambda: {"params": leaf()}),
    "a tuple": adder(lambda: {"params": (leaf(), leaf())}),
    "a set": adder(lambda: {"params": {leaf()}}),
    "a number": adder(lambda: {"params": [1]}),
    "a non-leaf": adder(lambda: {"params": [non_leaf()]}),
    "names in the added group only": adder(lambda: {"params": [("a", leaf())]}),
    "names in the first group only": adder(lambda: {"params": [leaf()]}, lambda: ("a", leaf())),
    "some with names": adder(lambda: {"params": [("a", leaf()), leaf()]}),
}


@pytest.mark.parametrize("group", ADDED_GROUPS)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_GROUP_CLASSES])
def test_an_added_group_is_checked_as_in_torch(name: str, group: str) -> None:
    ours, theirs = (outcome(lambda c=cls: ADDED_GROUPS[group](c)) for cls in ours_and_torchs(name))

    assert ours == theirs


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_listed_twice_in_a_group_warns_as_in_torch(name: str) -> None:
    messages = []
    for cls in ours_and_torchs(name):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cls([each := leaf(), each])
        messages.append([(w.category, str(w.message)) for w in caught])

    assert messages[0] == messages[1]
    assert len(messages[0]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_has_torchs_attributes(name: str) -> None:
    ours, theirs = (cls(parameters(name)) for cls in ours_and_torchs(name))
    known = {key for key in vars(theirs) if not key.startswith("_") or key.startswith("_optimizer")}
    known |= {"_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"}

    assert known <= set(vars(ours))
    assert ours._zero_grad_profile_name == theirs._zero_grad_profile_name
    assert type(ours.state) is type(theirs.state)
    assert type(ours).step.hooked


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_prints_as_torchs(name: str) -> None:
    """The text has torch's lines in their order, our additional flags, and parameter names."""
    for named in (False, True):
        texts = []
        for cls in ours_and_torchs(name):
            params: list[Any] = parameters(name)
            optimizer = cls([(f"p{i}", p) for i, p in enumerate(params)] if named else params)
            texts.append(repr(optimizer).splitlines())
        added = {
            "    capturable: False",
            "    differentiable: False",
            "    foreach: None",
            "    fused: None",
            "    maximize: False",
        }
        our_lines = iter(texts[0])  # `in` advances the iterator, so the order counts
        assert all(line in our_lines for line in texts[1])
        assert set(texts[0]) - set(texts[1]) <= added
        assert any("param_names: ['p0', 'p1'" in line for line in texts[0]) == named


@pytest.mark.parametrize("name", NAMES)
def test_parameter_names_are_saved_and_loaded_as_in_torch(name: str) -> None:
    results_of_classes = []
    for cls in ours_and_torchs(name):
        optimizers = []
        for letter in ("a", "b", ""):
            params: list[Any] = parameters(name)
            named = [(f"{letter}{i}", p) for i, p in enumerate(params)] if letter else params
            optimizer = cls(named)
            train(name, optimizer, params, 1)
            optimizers.append(optimizer)
        first, second, unnamed = optimizers
        results = [list(group) for group in first.param_groups]
        for other, source in ((second, first), (unnamed, second), (first, cls(parameters(name)))):
            other.load_state_dict(source.state_dict())
            results.append([group.get("param_names") for group in other.param_groups])
        results_of_classes.append(results)
    (our_keys, *our_names), (torchs_keys, *torchs_names) = results_of_classes

    assert our_keys[: len(torchs_keys)] == torchs_keys
    assert our_names == torchs_names


@pytest.mark.parametrize("flags", [{}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_zero_grad_resets_gradients_as_in_torch(name: str, flags: dict[str, bool]) -> None:
    """Gradients become None, or zeros in the same memory, detached from their graph."""
    if not takes(name, "foreach"):
        flags = {}
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params, **flags)
        give_gradients(name, params)
        params[0].grad = params[0].grad * torch.ones((), dtype=torch.float64, requires_grad=True)
        grads = [param.grad for param in params]
        optimizer.zero_grad(set_to_none=False)

        for param, before in zip(params, grads, strict=True):
            assert param.grad is before
            assert (param.grad.grad_fn, param.grad.requires_grad) == (None, False)
            assert not param.grad.to_dense().any()
        optimizer.zero_grad()
        assert [param.grad for param in params] == [None] * len(params)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_does_not_change_parameters_without_a_gradient(name: str) -> None:
    params = parameters(name)
    frozen = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64), requires_grad=False)
    optimizer = ours_and_torchs(name)[0]([*params, frozen])
    give_gradients(name, params)
    evaluate = closure(name, params)
    optimizer.step(*([evaluate] if evaluate else []))

    assert (frozen == 1).all()
    assert optimizer.state.get(frozen, {}).get("step", 0) == 0
