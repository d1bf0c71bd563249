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
from parity.classes import NAMES, ONE_GROUP
from torch import Tensor
from torch_versions import HAS_2_15

from optgen.runtime.light_optimizer import _UNORDERED


def leaf() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2, 2))


def non_leaf() -> Tensor:
    return torch.ones(2, 2, requires_grad=True) * 2


PARAMETERS: dict[str, Callable[[], Any]] = {
    "a tensor": leaf,
    "a set in a group": lambda: [{"params": {leaf()}}],
    "nothing": list,
    "numbers": lambda: [1],
    "text": lambda: "abc",
    "no leaf": lambda: [non_leaf()],
    "one twice": lambda: [{"params": [each := leaf()]}, {"params": [each]}],
    "some named": lambda: [("a", leaf()), leaf()],
    "groups, some named": lambda: [{"params": [("a", leaf())]}, {"params": [leaf()]}],
    "a group that is a tensor": lambda: [{"params": leaf()}, leaf()],
}


@pytest.mark.parametrize("params", PARAMETERS)
@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_refused_as_torch_does(name: str, params: str) -> None:
    def raised(cls: Any) -> Any:
        return outcome(lambda: str(len(cls(PARAMETERS[params]()).param_groups)))

    ours, theirs = map(raised, ours_and_torchs(name))
    assert ours == theirs
    assert isinstance(theirs, tuple)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_in_a_set_are_taken_with_one_warning(name: str) -> None:
    """The warning has the words of torch 2.15; older versions do not warn."""
    ours, theirs = ours_and_torchs(name)
    with pytest.warns(FutureWarning, match="ordering of tensors in sets will change") as caught:
        assert len(ours({leaf()}).param_groups) == 1
    assert [str(warning.message) for warning in caught] == [_UNORDERED]

    if HAS_2_15:
        with pytest.warns(FutureWarning) as torchs:
            theirs({leaf()})
        assert str(torchs[0].message) == _UNORDERED


@pytest.mark.parametrize("ordered", [list, tuple, frozenset, dict.fromkeys, iter])
def test_other_collections_are_taken_without_a_warning(ordered: Any) -> None:
    """torch does not warn of a frozenset either."""
    for cls in ours_and_torchs("SGD"):
        assert len(cls(ordered([leaf()])).param_groups) == 1


def adding(group: Callable[[], Any], first: Callable[[], Any] = leaf) -> Callable[[Any], Any]:
    def add(cls: Any) -> Any:
        optimizer = cls([first()])
        optimizer.add_param_group(group())
        return len(optimizer.param_groups)

    return add


LATER: dict[str, Callable[[Any], Any]] = {
    "no dict": adding(lambda: [leaf()]),
    "a tensor": adding(lambda: {"params": leaf()}),
    "a tuple": adding(lambda: {"params": (leaf(), leaf())}),
    "a set": adding(lambda: {"params": {leaf()}}),
    "a number": adding(lambda: {"params": [1]}),
    "no leaf": adding(lambda: {"params": [non_leaf()]}),
    "named": adding(lambda: {"params": [("a", leaf())]}),
    "unnamed": adding(lambda: {"params": [leaf()]}, lambda: ("a", leaf())),
    "some named": adding(lambda: {"params": [("a", leaf()), leaf()]}),
}


@pytest.mark.parametrize("group", LATER)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_GROUP])
def test_a_group_that_comes_later_is_checked_as_torch_does(name: str, group: str) -> None:
    ours, theirs = (outcome(lambda k=cls: LATER[group](k)) for cls in ours_and_torchs(name))

    assert ours == theirs


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_that_stands_in_a_group_twice_is_a_warning(name: str) -> None:
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
    """The text has torch's lines in order, our additional flags, and names if there are any."""
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
        lines = iter(texts[0])  # an iterator, so that the order counts
        assert all(line in lines for line in texts[1])
        assert set(texts[0]) - set(texts[1]) <= added
        assert any("param_names: ['p0', 'p1'" in line for line in texts[0]) == named


@pytest.mark.parametrize("name", NAMES)
def test_names_are_kept_and_loaded_as_torch_does(name: str) -> None:
    found = []
    for cls in ours_and_torchs(name):
        optimizers = []
        for letter in ("a", "b", ""):
            params: list[Any] = parameters(name)
            named = [(f"{letter}{i}", p) for i, p in enumerate(params)] if letter else params
            optimizer = cls(named)
            train(name, optimizer, params, 1)
            optimizers.append(optimizer)
        first, second, plain = optimizers
        results = [list(group) for group in first.param_groups]
        for other, source in ((second, first), (plain, second), (first, cls(parameters(name)))):
            other.load_state_dict(source.state_dict())
            results.append([group.get("param_names") for group in other.param_groups])
        found.append(results)
    known = ours_and_torchs(name)[1](parameters(name)).param_groups[0]

    assert found[0][0][: 2 + len(known) - 1] == found[1][0]
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("flags", [{}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_reset_as_torch_does(name: str, flags: dict[str, bool]) -> None:
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
def test_parameters_without_a_gradient_are_left_alone(name: str) -> None:
    params = parameters(name)
    frozen = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64), requires_grad=False)
    optimizer = ours_and_torchs(name)[0]([*params, frozen])
    give_gradients(name, params)
    evaluate = closure(name, params)
    optimizer.step(*([evaluate] if evaluate else []))

    assert (frozen == 1).all()
    assert optimizer.state.get(frozen, {}).get("step", 0) == 0
