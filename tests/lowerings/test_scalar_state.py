"""Test that every lowering rounds scalar state where torch's for-loop does, to the last bit.

Scalar state is float64, unless the spec says otherwise.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

STEPS = 60
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
RULES = {
    "products and the count": "s = 0.5 * (s * mu + nu) + t * 0.1",
    "operands without the state": "s = s + (0.1 * mu + nu * nu) / (mu + 0.3)",
    "nested products": "s = ((s * mu - nu) * 0.7 + mu) * (1.1 - s * nu)",
    "the state in several factors": "s = s * s * mu + (s - nu) * (s + nu) * 0.1",
    "functions": "s = sqrt(abs(s) * mu + nu) + maximum(nu * 0.3, s * 0.9) - minimum(s, mu)",
    "a power that is a root": "s = (s * s * mu + nu) ** 0.5",
    "a power that is an inverse root": "s = (abs(s) * mu + nu) ** -0.5",
    "an inverse root": "s = 1 / sqrt(abs(s) * mu + nu) + mu / (s + nu)",
    "a hypotenuse": "s = sqrt(s * s * mu + t * t * nu)",
    "a choice": "s = where(s * mu > nu, s * 0.7, s + mu * 0.1)",
    "a local name": "x = s * mu; s = x * 0.3 + nu * s",
    "no old value": "s = mu * 0.1 + t * nu",
    "a branch": "if s * mu > nu: s = s * 0.7\nelse: s = (s + mu) * 1.1",
}
FUNCTIONS = {
    "exp": "s = exp(-s * mu) * nu + mu",
    "log": "s = log(s * s + mu) + nu * s",
    "tanh": "s = tanh(s * mu) + nu * t",
    "sin and cos": "s = sin(s * mu + t) + cos(s * nu + t)",
    "atan2": "s = atan2(s + nu, mu * t)",
    "powers": "s = (abs(s) * mu + nu) ** nu + mu**t",
}
"""Rules with functions that no standard rounds correctly. Python and C++ call the C library's."""
NORMS = {
    "norm": "s = norm(g) + s * nu",
    "rms": "s = rms(g) + s * mu",
    "a root of a sum": "s = (sum(g * g) * nu + mu) ** 0.5 + s * mu",
    "an inverse root of a sum": "s = (sum(g * g) * nu + mu) ** -0.5 + s * mu",
}
"""Rules with roots of numbers that a tensor gives. Its one element has no order of summation."""


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "bits")


STATE_DTYPES = {
    "": torch.float64,
    "float64": torch.float64,
    "float32": torch.float32,
    "torch": torch.float32,
}


@functools.cache
def spec(rule: str, dtype: str = "") -> Spec:
    """Return a spec whose scalar state `s` follows a rule."""
    body = "\n".join(f"    {line}" for line in rule.replace("; ", "\n").splitlines())
    body = body.replace(": s", ":\n        s")
    declared = f', dtype="{dtype}"' if dtype else ""
    text = f'''
from optgen.spec import *

@optimizer()
def Small(
    p, g, t, /, s=state("s", shape="scalar", init=1.0{declared}), *,
    lr=hyper(0.1), mu=hyper(0.7312345678901), nu=hyper(0.2198765432109)
):
    """Keeps a number."""
{body}
    p = p - lr * s * t * mu * nu * g
'''
    return Spec("Small", text, "<small>", 1)


def gradient(step: int) -> torch.Tensor:
    return torch.full((1,), 1 + 0.3 * step, dtype=torch.float64)


@functools.cache
def oracle_values(rule: str, dtype: str) -> list[float]:
    """Return the oracle's state after each step."""
    (algorithm,) = read_spec(spec(rule, dtype))
    hypers = {hyper.name: hyper.default for hyper in algorithm.hypers}
    param, state, values = torch.ones(1), {}, []
    for step in range(STEPS):
        param, state = evaluate(algorithm, hypers, param, gradient(step), state, torch.float32)
        assert state["s"].dtype is STATE_DTYPES[dtype]
        values.append(float(state["s"]))
    return values


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", ["", "float32"])
def test_every_lowering_has_the_bits_of_the_oracle(dtype: str, name: str, lowering: str) -> None:
    assert values_of(RULES[name], dtype, lowering) == oracle_values(RULES[name], dtype)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", NORMS)
def test_roots_of_reductions_have_the_bits_of_the_oracle(name: str, lowering: str) -> None:
    assert values_of(NORMS[name], "", lowering) == oracle_values(NORMS[name], "")


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["", "float32"])
def test_functions_of_numbers_are_the_c_librarys(dtype: str, name: str, lowering: str) -> None:
    """Torch has functions of its own, whose last bits depend on the CPU."""
    assert values_of(FUNCTIONS[name], dtype, lowering) == oracle_values(FUNCTIONS[name], dtype)


def values_of(rule: str, dtype: str, lowering: str) -> list[float]:
    """Return the state after each step of a lowering."""
    param = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer: Any = optgen.load(spec(rule, dtype))([param])
    values = []
    for step in range(STEPS):
        param.grad = gradient(step)
        with use_lowering(lowering):
            optimizer.step()
        values.append(float(optimizer.state[param]["s"]))
    return values


def test_rounding_differs_from_computing_in_float64() -> None:
    """If both gave equal values, the test above could not fail."""
    s, values = 1.0, []
    for step in range(1, STEPS + 1):
        s = 0.5 * (s * 0.7312345678901 + 0.2198765432109) + step * 0.1
        values.append(float(torch.tensor(s, dtype=torch.float32)))

    assert values != oracle_values(RULES["products and the count"], "float32")


def param_and_optimizer_after_steps(
    dtype: str, param_dtype: torch.dtype, steps: int = 3, **options: Any
) -> Any:
    """Return a parameter and its optimizer after some steps."""
    parameter = torch.nn.Parameter(torch.ones(3, dtype=param_dtype))
    optimizer: Any = optgen.load(spec(RULES["nested products"], dtype))([parameter], **options)
    take_steps(optimizer, parameter, steps)
    return parameter, optimizer


def take_steps(optimizer: Any, param: torch.nn.Parameter, steps: int) -> None:
    for _ in range(steps):
        param.grad = torch.full_like(param, 0.01)
        optimizer.step()


@outside_interpreter
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("param_dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", STATE_DTYPES)
def test_a_scalar_state_has_its_declared_dtype(
    dtype: str, param_dtype: torch.dtype, options: dict[str, Any]
) -> None:
    parameter, optimizer = param_and_optimizer_after_steps(dtype, param_dtype, **options)
    assert optimizer.state[parameter]["s"].dtype is STATE_DTYPES[dtype]
    assert optimizer.state[parameter]["step"].dtype is torch.float32
    assert repr(parameter) == repr(param_and_optimizer_after_steps(dtype, param_dtype)[0])


@outside_interpreter
def test_dtype_torch_means_torchs_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        parameter, optimizer = param_and_optimizer_after_steps("torch", torch.float32)
        assert optimizer.state[parameter]["s"].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@outside_interpreter
@pytest.mark.parametrize("dtype", ["", "float32"])
def test_loading_a_checkpoint_keeps_the_dtype_of_scalar_state(dtype: str) -> None:
    """Torch would load a state of a bfloat16 parameter as bfloat16."""
    expected, _ = param_and_optimizer_after_steps(dtype, torch.bfloat16, 5)
    parameter, optimizer = param_and_optimizer_after_steps(dtype, torch.bfloat16)
    copied_param = torch.nn.Parameter(parameter.detach().clone())
    resumed: Any = type(optimizer)([copied_param])
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.state[copied_param]["s"].dtype is STATE_DTYPES[dtype]
    take_steps(resumed, copied_param, 2)
    assert torch.equal(copied_param, expected)


@outside_interpreter
@pytest.mark.parametrize("old", [torch.float32, float], ids=str)
def test_scalar_state_of_an_old_checkpoint_becomes_float64(old: Any) -> None:
    parameter, optimizer = param_and_optimizer_after_steps("", torch.float32)
    saved = optimizer.state_dict()
    value = saved["state"][0]["s"]
    saved["state"][0]["s"] = value.item() if old is float else value.to(old)
    optimizer.load_state_dict(saved)
    assert optimizer.state[parameter]["s"].dtype is torch.float64
    take_steps(optimizer, parameter, 1)


@outside_interpreter
def test_a_state_of_elements_may_not_be_declared_float64() -> None:
    text = spec("s = s * mu", "float64").source.replace('shape="scalar", ', "")
    with pytest.raises(SpecError, match='dtype="float64" is for a state of one number'):
        read_spec(Spec("Small", text, "<small>", 1))


@outside_interpreter
def test_the_functional_form_computes_scalar_state_in_float64() -> None:
    """The functional form, which a graph can capture, computes with tensors only."""
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
    expected = param_and_optimizer_after_steps("", torch.float64)[0].detach()
    optimizer: Any = optgen.load(spec(RULES["nested products"]))([param], differentiable=True)
    take_steps(optimizer, param, 3)
    assert optimizer.state[param]["s"].dtype is torch.float64
    torch.testing.assert_close(param.detach(), expected, rtol=1e-15, atol=0)
