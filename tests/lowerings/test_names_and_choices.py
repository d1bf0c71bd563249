"""Test rules with choices, and with names that printed code uses itself, in every lowering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings import name_clash_rules

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.ir.reserved_in_python import is_free, plural
from optgen.spec.read_spec import read_spec

ALGORITHMS = {a.name: a for a in read_spec(Path(name_clash_rules.__file__))}
CASES = [
    ("Scalars", {}),
    ("Bursts", {}),
    ("Conditions", {}),
    ("Conditions", {"streams": False, "block": True}),
    *(("Kernel", {"norm": norm, "mode": "b"}) for norm in ("first", "second", None)),
    ("Kernel", {"norm": "second", "mode": None}),
    ("Kernel", {"norm": None, "mode": "a"}),
    *(("Limits", {"limits": limits}) for limits in ((None, 0.1), (0.5, 0.1), (0.0, 2.0))),
]


def assert_agreement(name: str, settings: dict[str, Any], lowering: str) -> None:
    """Compare five steps of a lowering with the oracle; a choice changes after three steps."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(n, generator=generator, dtype=torch.float64) for n in (5, 1025)]
    functional = lowering == "functional"
    params = [torch.nn.Parameter(value.clone()) for value in values]
    cls = optgen.load(getattr(name_clash_rules, name))
    optimizer = cls(params, **settings, differentiable=functional)
    for param in params if functional else ():
        param.requires_grad_(False)  # a leaf that requires grad cannot be changed in place
    group = optimizer.param_groups[0]
    states: list[dict[str, Any]] = [{}, {}]
    for step in range(5):
        if step == 3 and "norm" in group:
            group["norm"] = "second" if group["norm"] == "first" else "first"
        for i, param in enumerate(params):
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            values[i], states[i] = evaluate(
                ALGORITHMS[name], group, values[i], param.grad, states[i], torch.float32
            )
        with use_lowering("forloop" if functional else lowering):
            optimizer.step()
    for param, value, state in zip(params, values, states, strict=True):
        torch.testing.assert_close(param.detach(), value, rtol=1e-12, atol=1e-13)
        assert set(optimizer.state[param]) == set(state)
        for key, found in optimizer.state[param].items():
            expected = torch.as_tensor(state[key], dtype=torch.float64)
            torch.testing.assert_close(found.double(), expected, rtol=1e-12, atol=1e-13)


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "functional", "foreach", "fused_cpu"])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_cpu_lowerings_agree_with_the_rule(
    name: str, settings: dict[str, Any], lowering: str
) -> None:
    assert_agreement(name, settings, lowering)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_triton_agrees_with_the_rule(name: str, settings: dict[str, Any]) -> None:
    assert_agreement(name, settings, "fused_triton")


@outside_interpreter
def test_a_step_refuses_an_unknown_choice() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = optgen.load(name_clash_rules.Kernel)([param])
    optimizer.param_groups[0]["norm"] = "third"
    param.grad = torch.ones(2)
    with use_lowering("fused_cpu"), pytest.raises(ValueError, match="Invalid norm value: third"):
        optimizer.step()


@outside_interpreter
def test_a_list_gets_a_name_that_is_free() -> None:
    assert [plural(n) for n in ("exp_avg", "rms", "a", "i", "clas")] == [
        *("exp_avgs", "rms_list", "a_list", "i_list", "clas_list")
    ]
    assert is_free("exp_avg_sq", ("exp_avg", "grad"))
    for name in ("bufs", "fresh_buf", "old_buf", "buf_then", "BUF", "torch", "buf", "class"):
        assert not is_free(name, ("buf",))
    assert not is_free("buf", ("bufs",))
