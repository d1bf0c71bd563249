"""Test which rules compute in 16 bits in the Python lowerings: those that say so, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from spec_texts import DECORATOR, spec

import optgen
from optgen import modifiers, use_lowering
from optgen.optim import Adam

QUOTIENT = ("v = 0.9 * v + 0.1 * g**2", "p = p - lr * g / (sqrt(v) + 1e-8)")


def stepped(cls: Any, lowering: str) -> float:
    """Return a float16 parameter after a step with a gradient of 0."""
    param = torch.ones(1, dtype=torch.float16, requires_grad=True)
    param.grad = torch.zeros_like(param)
    with use_lowering(lowering):
        cls([param]).step()
    return param.item()


def load(folder: Path, options: str) -> Any:
    """Return the class of a rule with these options of the decorator."""
    path = folder / "mine.py"
    decorator = DECORATOR.replace(")", f", {options})")
    path.write_text(spec(*QUOTIENT, states='v=state("v")', decorator=decorator))
    return optgen.load(path)


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_only_the_option_makes_a_rule_compute_in_its_parameters_dtype(
    tmp_path: Path, lowering: str
) -> None:
    """In float16, 1e-8 is 0, and 0 / 0 is NaN, as in torch's classes."""
    (tmp_path / "ordered").mkdir()
    keys = 'group=("lr", "maximize", "foreach", "capturable", "differentiable", "fused")'
    assert stepped(load(tmp_path / "ordered", keys), lowering) == 1
    narrow = stepped(load(tmp_path, 'compute_dtype="param"'), lowering)
    assert narrow != narrow


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_a_composition_with_a_class_of_torch_computes_in_float32(lowering: str) -> None:
    narrow = stepped(Adam, lowering)
    assert narrow != narrow
    assert stepped(optgen.compose(Adam, modifiers.clip_value(1.0)), lowering) == 1
