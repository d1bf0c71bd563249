"""Test constructors against torch's: signatures, defaults, order of group keys, and errors.

The errors that torch's own tests list are in parity/test_optim_db.py.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch_versions import only_newer_torch_refuses

import optgen.optim

NAMES = [
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "RAdam",
    "NAdam",
    "Adamax",
    "Adadelta",
    "Adagrad",
    "ASGD",
    "Rprop",
]
ADDED_FLAGS = ["maximize", "foreach", "fused", "capturable", "differentiable"]
NUMBERS = [-1, -0.1, 0, 1, 1.0, 2.5, math.inf, -math.inf, math.nan, True]
TENSORS_OF_ONE_ELEMENT = [
    torch.tensor(0.1),
    torch.tensor([0.1]),
    torch.tensor(-0.1),
    torch.tensor([-0.1]),
]
TENSORS_OF_OTHER_SIZES = [torch.tensor([0.1, 0.2]), torch.tensor([])]


def classes(name: str) -> tuple[Any, Any]:
    """Return our class and torch's."""
    return getattr(optgen.optim, name), getattr(torch.optim, name)


def parameters() -> list[Parameter]:
    return [Parameter(torch.ones(2))]


def outcome(cls: Any, params: Any, kwargs: dict[str, Any]) -> Any:
    """Return the constructor's error, or the entries of the group other than `params`."""
    try:
        group = cls(params, **kwargs).param_groups[0]
    except Exception as error:
        return type(error), str(error)
    return [f"{key}: {value!r}" for key, value in group.items() if key != "params"]


def assert_same_outcome(name: str, kwargs: dict[str, Any], params: Any = None) -> None:
    """Check that our class and torch's raise equal errors, or make groups with equal entries.

    Our group may have further entries at its end.
    """
    ours, theirs = (
        outcome(cls, parameters() if params is None else params, kwargs) for cls in classes(name)
    )
    if isinstance(ours, list) and isinstance(theirs, list):
        ours = ours[: len(theirs)]
    assert ours == theirs, kwargs


def hypers(name: str) -> Iterator[str]:
    """Yield the names of the arguments of torch's class that are numbers."""
    for argument in inspect.signature(classes(name)[1]).parameters.values():
        if isinstance(argument.default, int | float) and not isinstance(argument.default, bool):
            yield argument.name


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_begins_with_torchs(name: str) -> None:
    """Torch's arguments come first. Added flags follow, and are keyword-only."""
    ours, theirs = (list(inspect.signature(c).parameters.values()) for c in classes(name))
    added = ours[len(theirs) :]

    assert ours[: len(theirs)] == theirs  # names, kinds, defaults and annotations
    known = {argument.name for argument in theirs}
    assert [argument.name for argument in added] == [
        flag for flag in ADDED_FLAGS if flag not in known
    ]
    assert {argument.kind for argument in added} <= {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_the_order_of_group_keys_are_torchs(name: str) -> None:
    ours, theirs = (cls(parameters()) for cls in classes(name))

    assert list(ours.defaults) == list(theirs.defaults)
    assert list(ours.param_groups[0]) == list(theirs.param_groups[0])
    assert {key: ours.defaults[key] for key in theirs.defaults} == theirs.defaults


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_an_added_flag_is_a_group_key_if_its_value_is_not_the_default(
    name: str, value: bool
) -> None:
    ours, theirs = classes(name)
    known = theirs(parameters()).defaults
    for flag in (flag for flag in ADDED_FLAGS if flag not in known):
        default = None if flag in ("foreach", "fused") else False
        keys = [*known] if value is default else [*known, flag]
        optimizer = ours(parameters(), **{flag: value})
        assert list(optimizer.defaults) == keys
        assert list(optimizer.state_dict()["param_groups"][0]) == [*keys, "params"]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_checked_as_torch_does(name: str) -> None:
    for hyper, value in itertools.product(hypers(name), NUMBERS):
        only_we_refuse = name == "SGD" and math.isnan(value)
        if not only_we_refuse and not only_newer_torch_refuses(name, {hyper: value}):
            assert_same_outcome(name, {hyper: value})


@pytest.mark.parametrize("value", [-1, -0.5, math.nan])
@pytest.mark.parametrize("hyper", ["lambd", "alpha"])
def test_asgd_refuses_what_torch_refuses_since_2_15(hyper: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"Invalid {hyper} value: {value}"):
        optgen.optim.ASGD(parameters(), **{hyper: value})


@pytest.mark.parametrize("hyper", ["lr", "momentum", "weight_decay"])
def test_sgd_refuses_nan(hyper: str) -> None:
    """Torch's SGD refuses `lr < 0.0`, so it accepts NaN. Torch's other classes refuse NaN."""
    with pytest.raises(ValueError, match=r"Invalid .*: nan"):
        optgen.optim.SGD(parameters(), **{hyper: math.nan})


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RAdam", "NAdam", "Adamax"])
def test_betas_are_checked_as_torch_does(name: str) -> None:
    for value in NUMBERS:
        for betas in [(value, 0.9), (0.9, value), [0.9, value]]:
            assert_same_outcome(name, {"betas": betas})
    assert_same_outcome(name, {"betas": (0.9,)})
    ours, theirs = (outcome(cls, parameters(), {"betas": 0.9}) for cls in classes(name))
    assert ours == (TypeError, "betas must be a tuple of 2 numbers, not 0.9")
    assert theirs == (TypeError, "'float' object is not subscriptable")


@pytest.mark.parametrize("extra", [{}, {"foreach": True}, {"foreach": True, "capturable": True}])
@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_lr_is_checked_as_torch_does(name: str, extra: dict[str, bool]) -> None:
    if name in ("SGD", "Adagrad"):
        extra = {key: value for key, value in extra.items() if key != "capturable"}
    for lr in [*TENSORS_OF_ONE_ELEMENT, *TENSORS_OF_OTHER_SIZES]:
        assert_same_outcome(name, {"lr": lr, **extra})


@pytest.mark.parametrize("extra", [{}, {"foreach": True}, {"foreach": True, "capturable": True}])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_tensor_betas_are_checked_as_torch_does(name: str, extra: dict[str, bool]) -> None:
    for first, second in itertools.product([*TENSORS_OF_ONE_ELEMENT, 0.5, 1], repeat=2):
        assert_same_outcome(name, {"betas": (first, second), **extra})


@pytest.mark.parametrize(
    ("name", "hyper", "build"),
    [
        ("Adam", "betas[0]", lambda x: {"betas": (x, torch.tensor(0.9))}),
        ("AdamW", "betas[1]", lambda x: {"betas": (torch.tensor(0.9), x)}),
        ("SGD", "weight_decay", lambda x: {"weight_decay": x}),
        ("AdamW", "weight_decay", lambda x: {"weight_decay": x}),
    ],
)
@pytest.mark.parametrize("value", TENSORS_OF_OTHER_SIZES, ids=["two", "none"])
def test_a_tensor_must_have_one_element(
    name: str, hyper: str, build: Callable[[Tensor], dict[str, Any]], value: Tensor
) -> None:
    """Torch compares the value before it checks the size, so it raises another error."""
    ours, theirs = classes(name)

    with pytest.raises(ValueError) as error:
        ours(parameters(), **build(value))
    assert str(error.value) == f"Tensor {hyper} must be 1-element"
    with pytest.raises(RuntimeError, match="ambiguous"):
        theirs(parameters(), **build(value))


def test_tensor_betas_become_zero_dimensional() -> None:
    arguments = (torch.tensor([0.8]), torch.tensor(0.9))
    betas = optgen.optim.Adam(parameters(), betas=arguments).param_groups[0]["betas"]

    assert [beta.shape for beta in betas] == [(), ()]
    assert betas[0].data_ptr() == arguments[0].data_ptr()  # the caller can change the beta
    assert betas[1] is arguments[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", ["foreach", "differentiable"])
def test_fused_excludes_foreach_and_differentiable(name: str, other: str) -> None:
    """Every class raises the error, even if torch's class has no fused kernel."""
    kwargs = {"fused": True, other: True}
    messages = {
        "foreach": "`fused` and `foreach` cannot be `True` together.",
        "differentiable": "`fused` does not support `differentiable`",
    }

    with pytest.raises(RuntimeError) as error:
        classes(name)[0](parameters(), **kwargs)
    assert str(error.value) == messages[other]
    if "fused" in inspect.signature(classes(name)[1]).parameters:
        assert_same_outcome(name, kwargs)


@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("dampening", [0, 0.1, -0.1])
def test_nesterov_is_checked_as_torch_does(momentum: float, dampening: float) -> None:
    assert_same_outcome("SGD", {"nesterov": True, "momentum": momentum, "dampening": dampening})


@pytest.mark.parametrize(
    ("name", "hyper"), [("sgdw", "dampening"), ("lars", "dampening"), ("galore", "scale")]
)
def test_a_negative_factor_of_the_gradient_is_refused(name: str, hyper: str) -> None:
    """SGD accepts a negative dampening, as torch's does."""
    cls: Any = optgen.optim.optimizer_class(name)
    params = [Parameter(torch.ones(2, 2))]
    with pytest.raises(ValueError, match=f"Invalid {hyper} value: -0.5"):
        cls(params, **{hyper: -0.5})
    cls(params, **{hyper: 0.5})


def test_no_checkpoint_or_argument_changes_adamws_decoupled_weight_decay() -> None:
    for cls in classes("AdamW"):
        optimizer = cls(parameters())
        state = optimizer.state_dict()
        state["param_groups"][0]["decoupled_weight_decay"] = False
        optimizer.load_state_dict(state)

        assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            cls(parameters(), decoupled_weight_decay=True)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("SGD", "Adagrad")])
def test_sparse_gradients_are_refused_as_torch_does(name: str) -> None:
    """Torch's error for AdamW names Adam, and ours does, too."""
    messages = []
    for cls in classes(name):
        (param,) = params = parameters()
        param.grad = torch.ones(2).to_sparse()
        try:
            cls(params).step()
        except RuntimeError as error:
            messages.append(str(error))

    assert len(messages) == 2
    assert messages[0] == messages[1]


@pytest.mark.parametrize("name", NAMES)
def test_flags_missing_from_an_old_checkpoint_get_torchs_defaults(name: str) -> None:
    """The arguments of the optimizer that loads the checkpoint do not count.

    SGD's `fused` becomes None, and False in torch. Both mean the default.
    """
    flags = [key for key, value in classes(name)[1](parameters()).defaults.items() if not value]
    flags = [flag for flag in flags if flag not in hypers(name)]
    loaded = []
    for cls in classes(name):
        state = cls(parameters()).state_dict()
        for flag in flags:
            del state["param_groups"][0][flag]
        optimizer = cls(parameters(), maximize=True, foreach=True)
        optimizer.load_state_dict(state)
        loaded.append({flag: optimizer.param_groups[0][flag] or None for flag in flags})

    assert {"maximize", "foreach"} < set(flags)
    assert loaded[0] == loaded[1] == dict.fromkeys(flags)


@pytest.mark.parametrize("etas", [(0, 1.2), (1, 1.2), (0.5, 1), (math.nan, 1.2), (0.5, math.nan)])
def test_etas_are_checked_as_torch_does(etas: tuple[float, float]) -> None:
    assert_same_outcome("Rprop", {"etas": etas})
    assert_same_outcome("Rprop", {"etas": list(etas)})
