"""Test scalar states computed from reductions: they stay on the device, checkpoints hold them."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.capture import capture_on_cpu
from lowerings.oracle_steps import steps_beside_the_oracle
from lowerings.papers import random_tensors
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.runtime.state.scalars import as_scalar
from optgen.spec import Spec

SCALAR_AROUND_ROWS = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def ScalarAroundRows(p, g, /, v=state("v", shape="scalar", init=0.5), *, lr=hyper(1e-2)):
    """Compute a scalar from reductions before and after a reduction of rows."""
    v = 0.9 * v + sum(g**2)
    if factored(p):
        g = g / (1 + rms(row_sum(g)))
    v = v + max_abs(g)
    p = p - lr * g / (1 + v)
'''
ITEM_OR_SUM_SIGNATURE = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def ItemOrSum(
    p, g, /, m=state("m"){}, *, lr=hyper(0.1), betas=hyper((0.5, 0.25)), on=flag(False)
):
    """A sum, or an item of a tuple hyperparameter, by a flag."""{}
    p = p - lr * m
'''
RULE_NAMES = ("novograd", "stable_spam", "amos", "one_moment", "reduced_scalars")


@pytest.mark.parametrize("name", RULE_NAMES)
def test_no_captured_step_reads_a_scalar_state_on_the_host(name: str) -> None:
    params = random_tensors(100)
    optimizer = optgen.load(spec_file(name))(params, capturable=True)
    clones = [param.clone() for param in params]
    reference = optgen.load(spec_file(name))(clones)
    for step in range(3):
        for param, clone, grad in zip(params, clones, random_tensors(step), strict=True):
            param.grad, clone.grad = grad, grad.clone()
        with capture_on_cpu():
            optimizer.step()
        with use_lowering("forloop"):
            reference.step()
    for param, clone in zip(params, clones, strict=True):
        torch.testing.assert_close(param, clone, rtol=0, atol=1e-13)


def test_scalars_computed_from_reductions_are_on_the_device_of_the_parameter() -> None:
    """Scalar states that the host computes stay on the CPU."""
    rule = optgen.load(spec_file("stable_spam")).rule
    on_device_by_key = {
        state.key: state.on_device for state in rule.states if state.shape == "scalar"
    }
    assert on_device_by_key == {
        "m_norm_t": True,
        "v_norm_t": True,
        "m_max_t": True,
        "inner_step": False,
    }
    param = torch.empty(3, device="meta")
    for on_device, device in ((True, "meta"), (False, "cpu")):
        scalar = as_scalar(0.0, rule, {}, param, torch.float64, on_device)
        assert scalar.device.type == device


def test_a_rule_on_whole_matrices_may_have_a_device_scalar() -> None:
    rule = SCALAR_AROUND_ROWS.replace("rms(row_sum(g))", "norm(g @ transpose(g))")
    cls = optgen.load(Spec("scalar_around_rows", rule, "<made>", 1))
    assert cls.rule.why_uncut
    (state,) = cls.rule.states
    assert state.on_device
    param = torch.zeros(2, 3)
    param.grad = torch.ones(2, 3)
    optimizer = cls([param])
    optimizer.step()
    norm = 6.0  # each of the four elements of the product is 3
    sum_of_squares, largest = 6.0, 1 / (1 + norm)
    expected = 0.9 * 0.5 + sum_of_squares + largest
    assert optimizer.state[param]["v"].item() == pytest.approx(expected)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_checkpoint_holds_scalar_states(name: str) -> None:
    cls = optgen.load(spec_file(name))
    params = random_tensors(100)
    optimizer = cls(params)

    def step(optimizer: Any, params: list[Tensor], number: int) -> None:
        for param, grad in zip(params, random_tensors(number), strict=True):
            param.grad = grad
        optimizer.step()

    step(optimizer, params, 0)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    clones = [p.clone() for p in params]
    resumed = cls(clones)
    resumed.load_state_dict(torch.load(file))
    for number in (1, 2):
        step(optimizer, params, number)
        step(resumed, clones, number)
    for param, clone in zip(params, clones, strict=True):
        assert torch.equal(param, clone)
        for key, value in optimizer.state[param].items():
            assert torch.equal(value, resumed.state[clone][key])
            assert value.dtype == resumed.state[clone][key].dtype


@pytest.mark.parametrize("shape", [(0, 2, 3), (0, 3), (2, 0), (0,)], ids=str)
def test_a_parameter_without_elements_keeps_its_scalars(shape: tuple[int, ...]) -> None:
    cls = optgen.load(Spec("scalar_around_rows", SCALAR_AROUND_ROWS, "<made>", 1))
    param = torch.zeros(shape, dtype=torch.float64)
    param.grad = torch.zeros_like(param)
    for lowering in ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu"):
        optimizer = cls([param])
        for _ in range(3):
            with use_lowering(lowering):
                optimizer.step()
        assert optimizer.state[param]["v"].item() == pytest.approx(0.5 * 0.9**3, rel=1e-15)


ITEM_OR_SUM_BODIES = {
    "a sum in one branch, an item in the other": """
    if on:
        a = sum(g**2)
    else:
        a = betas[1]
    m = lerp(m, g, a)""",
    "an item after a sum": """
    a = sum(g**2)
    if on:
        a = betas[1]
    m = lerp(m, g, a)""",
    "items unpacked after a sum": """
    a = sum(g**2)
    if on:
        a, b = betas
        m = m + b
    m = lerp(m, g, a)""",
    "a device scalar": """
    d = 0.5 * d + sum(g**2)
    m = m + d * g
    if on:
        d = betas[1]""",
}


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("case", ITEM_OR_SUM_BODIES)
def test_an_item_of_a_tuple_may_stand_in_place_of_a_sum(case: str, on: bool) -> None:
    state = ', d=state("d", shape="scalar")' if case == "a device scalar" else ""
    source = Spec(
        "item_or_sum", ITEM_OR_SUM_SIGNATURE.format(state, ITEM_OR_SUM_BODIES[case]), "<made>", 1
    )
    for lowering in ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu"):
        for step in steps_beside_the_oracle(source, lowering, torch.float64, shape=(3, 5), on=on):
            torch.testing.assert_close(step.param, step.expected_param)
            for key, expected in step.expected_state.items():
                torch.testing.assert_close(step.state[key], expected, check_dtype=False)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__, keyword="without_elements or in_place_of_a_sum")
