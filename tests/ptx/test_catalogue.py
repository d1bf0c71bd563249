"""Test the checked-in kernels: compiled for sm_90, and run on an emulated device."""

from __future__ import annotations

import pytest
import torch
from interpreter import outside_interpreter

pytest.importorskip("triton")

from fuzz.trial import Setting, StepCounts, run

from benchmarks.triton_aot_compile import flags_of
from ptx.emulate import emulated
from ptx.situations import SHAPES, classes, rule_of

pytestmark = outside_interpreter

SPARSE = ("RowWiseAdagrad", "SparseAdam")
"""Classes whose gradients are sparse: the oracle takes dense ones."""


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize("has_flags", [False, True], ids=["", "flags"])
@pytest.mark.parametrize("name", [name for name in classes() if name not in SPARSE])
def test_steps_in_float64_are_those_of_the_oracle(name: str, has_flags: bool) -> None:
    rule = rule_of(name)
    flags = flags_of(rule.cls) if has_flags else {}
    if has_flags and not flags:
        pytest.skip("the class has no optional states")
    shapes = [shape for shape in SHAPES if len(shape) > 1 or accepts_vectors(rule.cls)]
    counts = StepCounts()
    with emulated() as device:
        findings = run(rule, Setting(flags, tuple(shapes), "float64"), ("fused_triton",), counts)
    assert not findings
    assert counts.compared
    assert device.launches


def accepts_vectors(cls: type[torch.optim.Optimizer]) -> bool:
    try:
        cls([torch.zeros(3, requires_grad=True)])
    except ValueError:
        return False
    return True
