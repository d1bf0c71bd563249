"""Test that a view that does not fit is refused, with the group's number, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.test_failed_steps import snapshot_of
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.optim import SGD, Adafactor, AdamW, Muon, NorMuon, SparseAdam


class Size(int):
    """An int of a class that `torch.load(weights_only=True)` refuses."""


FORM_ERROR = "view must be a tuple of ints, at most one of them -1"
INVALID_VIEWS: dict[str, tuple[Any, str]] = {
    "a list": ([8, 27], FORM_ERROR),
    "a number": (216, FORM_ERROR),
    "a string": ("8x27", FORM_ERROR),
    "a dict": ({8: 27}, FORM_ERROR),
    "a tensor": (torch.tensor([8, 27]), FORM_ERROR),
    "floats": ((8.0, 27.0), FORM_ERROR),
    "a bool": ((8, True, 27), FORM_ERROR),
    "None inside": ((8, None), FORM_ERROR),
    "a subclass of int": ((Size(8), 27), FORM_ERROR),
    "two sizes of -1": ((-1, 3, -1), FORM_ERROR),
    "below -1": ((-8, -27), FORM_ERROR),
    "False": (False, FORM_ERROR),
    "too many axes": ((1,) * 32 + (216,), "view has 33 axes, and may have 32"),
    "too few elements": ((8, 26), "216 elements are not 208"),
    "too many elements": ((8, 28), "216 elements are not 224"),
    "one element": ((), "216 elements are not 1"),
    "no multiple": ((7, -1), "216 elements are no multiple of 7"),
    "0 beside -1": ((0, -1), "with a size of 0, -1 could be any size"),
    "no elements": ((0, 8), "216 elements are not 0"),
    "huge": ((2**40, 2**40), "its sizes are too large"),
    "huge sizes and 0": ((2**62, 4, 0), "its sizes are too large"),
    "beyond 64 bits": ((10**400, -1), "its sizes are too large"),
}
CLASSES = (AdamW, Adafactor)


def optimizer_after_a_step(cls: Any = Adafactor, **group: Any) -> Any:
    """Return an optimizer after a step; only its second group has the options."""
    params = [[Parameter(torch.ones(3, 4))], [Parameter(torch.ones(8, 3, 3, 3))]]
    optimizer = cls([{"params": params[0]}, {"params": params[1], **group}])
    give_gradients(optimizer)
    optimizer.step()
    return optimizer


def give_gradients(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.full_like(param, 0.5)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("view", "reason"), INVALID_VIEWS.values(), ids=INVALID_VIEWS)
def test_a_view_of_an_added_group_is_refused(cls: Any, view: Any, reason: str) -> None:
    optimizer = optimizer_after_a_step(cls)
    before = snapshot_of(optimizer)
    with pytest.raises(ValueError, match="group 2: ") as refused:
        optimizer.add_param_group({"params": [torch.ones(8, 3, 3, 3)], "view": view})
    assert reason in str(refused.value)
    assert snapshot_of(optimizer) == before
    give_gradients(optimizer)
    optimizer.step()


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("view", "reason"), INVALID_VIEWS.values(), ids=INVALID_VIEWS)
def test_a_view_in_the_constructor_is_refused(cls: Any, view: Any, reason: str) -> None:
    groups = [{"params": [torch.ones(2)]}, {"params": [torch.ones(8, 3, 3, 3)], "view": view}]
    with pytest.raises(ValueError, match="group 1: ") as refused:
        cls(groups)
    assert reason in str(refused.value)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("group", [{}, {"view": (8, -1)}], ids=str)
def test_a_view_that_is_set_after_a_step_is_refused(lowering: str, group: dict[str, Any]) -> None:
    with use_lowering(lowering):
        optimizer = optimizer_after_a_step(**group)
        for view, reason in INVALID_VIEWS.values():
            give_gradients(optimizer)
            optimizer.param_groups[1]["view"] = view
            before = snapshot_of(optimizer)
            for call in (optimizer.step, lambda: optgen.explain(optimizer), optimizer.init_state):
                with pytest.raises(ValueError, match="group 1: ") as refused:
                    call()
                assert reason in str(refused.value)
                assert snapshot_of(optimizer) == before
        optimizer.param_groups[1] |= {"view": None, **group}
        if group:
            optimizer.step()


def test_the_error_names_group_parameter_and_view() -> None:
    optimizer = optimizer_after_a_step(view=(8, -1))
    optimizer.param_groups[1]["view"] = (3, 7, -1)
    with pytest.raises(ValueError, match="group 1") as refused:
        optimizer.step()
    assert str(refused.value) == (
        "group 1: view=(3, 7, -1) does not fit a parameter of shape (8, 3, 3, 3): "
        "216 elements are no multiple of 21"
    )


def test_a_first_step_refuses_a_view_that_was_set_after_the_constructor() -> None:
    optimizer = Adafactor([torch.ones(8, 3).requires_grad_()])
    give_gradients(optimizer)
    optimizer.param_groups[0]["view"] = (5, -1)
    with pytest.raises(ValueError, match="group 0: view"):
        optimizer.step()
    assert not optimizer.state


def test_a_rules_requirements_hold_for_the_view() -> None:
    weight = torch.ones(8, 3, 3, 3)
    with pytest.raises(ValueError, match=r"not the shape torch.Size\(\[8, 3, 3, 3\]\)"):
        NorMuon([weight])
    with pytest.raises(ValueError, match=r"group 0: view=\(8, 3, -1\) of .*: NorMuon"):
        NorMuon([{"params": [weight], "view": (8, 3, -1)}])
    optimizer = NorMuon([{"params": [weight.clone().requires_grad_()], "view": (8, -1)}])
    give_gradients(optimizer)
    optimizer.step()
    optimizer.param_groups[0]["view"] = (2, 4, -1)
    with pytest.raises(ValueError, match="NorMuon takes matrices"):
        optimizer.step()


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_new_parameter_that_the_view_does_not_fit_is_refused(lowering: str) -> None:
    with use_lowering(lowering):
        optimizer = optimizer_after_a_step(view=(8, -1))
        give_gradients(optimizer)
        optimizer.step()
        optimizer.param_groups[1]["params"][0] = param = torch.ones(5, 5).requires_grad_()
        param.grad = torch.ones(5, 5)
        with pytest.raises(ValueError, match=r"group 1: view=\(8, -1\) does not fit .* \(5, 5\)"):
            optimizer.step()
    assert param not in optimizer.state


@pytest.mark.parametrize("cls", [SGD, SparseAdam])
def test_sparse_gradients_are_refused(cls: Any) -> None:
    param = torch.ones(4, 6).requires_grad_()
    param.grad = torch.eye(4, 6).to_sparse()
    optimizer = cls([{"params": [param], "view": (2, 12)}])
    with pytest.raises(RuntimeError, match=r"view=\(2, 12\) takes no sparse gradients"):
        optimizer.step()
    assert not optimizer.state
    assert (param == 1).all()


def test_a_view_set_after_sparse_steps_refuses_sparse_gradients() -> None:
    """A cached step of sparse gradients is not repeated with a view."""
    param = torch.ones(4, 6).requires_grad_()
    optimizer = SGD([{"params": [param], "name": "embedding"}], lr=0.1)
    for _ in range(3):
        param.grad = torch.eye(4, 6).to_sparse()
        optimizer.step()
    del optimizer.param_groups[0]["name"]
    optimizer.param_groups[0]["view"] = (2, 12)
    with pytest.raises(RuntimeError, match="takes no sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize("key", ["grad", "momentum_buffer"])
@pytest.mark.parametrize("shape", [(6, 4), (2, 12)])
def test_a_tensor_of_another_shape_than_its_parameter_is_refused(
    key: str, shape: tuple[int, ...]
) -> None:
    """The number of elements is equal, and one of the shapes is that of the view."""
    param = Parameter(torch.ones(4, 6))
    optimizer = Muon([{"params": [param], "view": (2, 12)}])
    for _ in range(2):
        give_gradients(optimizer)
        optimizer.step()
    give_gradients(optimizer)
    if key == "grad":
        assert param.grad is not None
        param.grad.resize_(shape)
    else:
        optimizer.state[param][key] = torch.ones(shape)
    before = snapshot_of(optimizer)
    with pytest.raises(RuntimeError, match=r"has the shape .*, but its parameter \(4, 6\)"):
        optimizer.step()
    assert snapshot_of(optimizer) == before


def test_an_expanded_parameter_raises_torchs_error() -> None:
    param = torch.ones(4, 1).expand(4, 6).requires_grad_()
    other = torch.ones(4, 6).requires_grad_()
    optimizer = Adafactor([{"params": [other, param], "view": (2, -1)}])
    for each in (other, param):
        each.grad = torch.ones(4, 6)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        optimizer.step()
    assert (other == 1).all()
    assert not optimizer.state
