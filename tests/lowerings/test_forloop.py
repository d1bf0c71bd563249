"""Test the for-loop's printed code: its in-place and functional forms compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowerings.rules import RULES, function_body, spec_text

import optgen
from optgen import use_lowering
from optgen.lowerings.forloop import FORLOOP
from optgen.spec import Spec


@pytest.mark.parametrize("name", RULES)
def test_update_is_printed_as_recorded(name: str, golden: Any) -> None:
    golden.check(function_body(RULES[name], FORLOOP, "update"))


@pytest.mark.parametrize(
    "name", ["branches", "a square root in one branch", "scalar state", "swap"]
)
def test_functional_update_is_printed_as_recorded(name: str, golden: Any) -> None:
    golden.check(function_body(RULES[name], FORLOOP, "update_functional"))


def values_after_training(name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the parameter and its states after seven steps."""
    torch.manual_seed(0)
    cls = optgen.load(Spec("Small", spec_text(RULES[name]), "<small>", 1))
    param = torch.nn.Parameter(torch.rand(5, dtype=torch.float64) + 1)
    optimizer = cls([param], **options)
    for _ in range(7):
        param.grad = torch.randn(5, dtype=torch.float64)
        if options:
            param.requires_grad_(False)  # a leaf that requires grad cannot be changed in place
        with use_lowering("forloop"):
            optimizer.step()
    return [param.detach(), *optimizer.state[param].values()]


@pytest.mark.parametrize("name", RULES)
def test_in_place_and_functional_forms_agree(name: str) -> None:
    in_place, functional = (
        values_after_training(name, {}),
        values_after_training(name, {"differentiable": True}),
    )

    for value, expected in zip(functional, in_place, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_the_functional_form_writes_only_at_its_end(name: str) -> None:
    """Autograd and graph capture need unchanged inputs until the function's end."""
    lines = function_body(RULES[name], FORLOOP, "update_functional").splitlines()
    writes = [number for number, line in enumerate(lines) if ".copy_(" in line]
    ending = [line for line in lines[writes[0] :] if line.strip()]

    assert all(".copy_(" in line or line.strip().startswith("if ") for line in ending)
    assert not any("_(" in line.replace(".copy_(", "") for line in lines)
