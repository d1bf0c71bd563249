"""Test the class of a rule with a tuple whose first number may be None."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowerings import name_clash_rules
from torch.nn import Parameter

import optgen
from optgen import use_lowering


def test_the_constructor_checks_every_number_of_the_tuple() -> None:
    cls: Any = optgen.load(name_clash_rules.Limits)
    assert cls.__init__.__annotations__["limits"] == tuple[float | None, float]
    with pytest.raises(ValueError, match=r"^limit 1: -1$"):
        cls([Parameter(torch.ones(2))], limits=(-1, 1e-3))
    with pytest.raises(ValueError, match=r"^limit 2: nan$"):
        cls([Parameter(torch.ones(2))], limits=(None, float("nan")))


def test_a_step_refuses_none_for_a_number_that_is_not_optional() -> None:
    param = Parameter(torch.ones(2))
    optimizer: Any = optgen.load(name_clash_rules.Limits)([param])
    optimizer.param_groups[0]["limits"] = (1.0, None)
    param.grad = torch.ones(2)
    with use_lowering("fused_cpu"), pytest.raises(TypeError, match="limits must be a number"):
        optimizer.step()
