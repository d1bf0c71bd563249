"""Test errors about hyperparameters that are no numbers, such as numbers in quotes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optgen
from optgen.optim import SGD, Adafactor, AdamW, Muon
from optgen.optim._published import published_class


def param() -> Tensor:
    """Return a parameter with a gradient."""
    made = nn.Parameter(torch.ones(2, 2))
    made.grad = torch.ones(2, 2)
    return made


@pytest.mark.parametrize(
    ("make", "key", "wrong", "way_out"),
    [
        (AdamW, "lr", "1e-3", ": write 1e-3 without quotes"),
        (AdamW, "betas", ("0.9", 0.999), ": write 0.9 without quotes"),
        (AdamW, "eps", "small", ""),
        (AdamW, "lr", None, ""),
        (SGD, "momentum", "0.9", ": write 0.9 without quotes"),
        (SGD, "lr", [0.1], ""),
        (Adafactor, "eps", (None, "1e-3"), ": write 1e-3 without quotes"),
        (Muon, "ns_steps", "5", ": write 5 without quotes"),
        (published_class("lion"), "weight_decay", "0", ": write 0 without quotes"),
    ],
)
def test_an_argument_that_is_no_number_is_named(
    make: Any, key: str, wrong: Any, way_out: str
) -> None:
    item = wrong[0] or wrong[1] if isinstance(wrong, tuple) else wrong
    message = f"{key} must be a number, not {item!r}{way_out}"
    with pytest.raises(TypeError) as caught:
        make([param()], **{key: wrong})
    assert str(caught.value) == message

    with pytest.raises(TypeError) as caught:
        make([{"params": [param()], key: wrong}])
    assert str(caught.value) == message

    optimizer = make([param()])
    with pytest.raises(TypeError) as caught:
        optimizer.add_param_group({"params": [param()], key: wrong})
    assert str(caught.value) == message
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("cls", "key", "count"), [(AdamW, "betas", 2), (Muon, "ns_coefficients", 3)]
)
def test_a_number_instead_of_a_tuple_is_named(cls: Any, key: str, count: int) -> None:
    message = f"{key} must be a tuple of {count} numbers, not 0.9"
    optimizer = cls([param()])
    for call in (
        lambda: cls([param()], **{key: 0.9}),
        lambda: cls([{"params": [param()], key: 0.9}]),
        lambda: optimizer.add_param_group({"params": [param()], key: 0.9}),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == message
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("cls", "key"), [(AdamW, "weight_decay"), (AdamW, "lr"), (published_class("lion"), "lr")]
)
def test_a_tensor_of_two_numbers_is_named(cls: Any, key: str) -> None:
    with pytest.raises(ValueError, match=f"^Tensor {key} must be 1-element"):
        cls([param()], **{key: torch.tensor([0.1, 0.1])})


def test_a_positional_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"betas must be a tuple of 2 numbers, not 0\.9"):
        AdamW([param()], 1e-3, 0.9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"lr must be a number, not '0\.1'"):
        AdamW([param()], "0.1")  # type: ignore[arg-type]


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_step_refuses_a_number_in_quotes(lowering: str) -> None:
    optimizer = AdamW([param()])
    optimizer.param_groups[0]["lr"] = "1e-3"
    with optgen.use_lowering(lowering), pytest.raises(TypeError, match="lr must be a number"):
        optimizer.step()
    assert not optimizer.state


def test_a_subclass_may_take_text() -> None:
    class Named(AdamW):
        def __init__(self, params: Any, lr: str) -> None:
            super().__init__(params, float(lr))

    optimizer = Named([param()], "0.5")
    for each in (optimizer, copy.deepcopy(optimizer)):
        assert each.param_groups[0]["lr"] == 0.5
    assert pickle.loads(pickle.dumps(AdamW([param()]))).param_groups[0]["lr"] == 1e-3
