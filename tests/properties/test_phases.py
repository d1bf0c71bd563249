"""Test random rules for whole parameters: their plans compute what the rule says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, note, reject, settings
from hypothesis import strategies as st
from invariants import verify_algorithm, verify_plan
from matrix_strategies import MATRIX_FOOTER, MATRIX_HEADER, matrix_specs
from plan_run import run_plan
from strategies import FLAGS, FOOTER
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.print_ir import to_text
from optgen.ir.verify_reads import VerifyError
from optgen.passes.cut_phases import Order
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan_rule import plans
from optgen.passes.prepare_rule import add_maximize, expand_reductions
from optgen.passes.ssa import to_ssa
from optgen.passes.sweep_algebra import fold_denominators
from optgen.runtime.eager import parts
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

SHAPES = ((3, 4), (4, 1), (2, 3, 2))


def param_then_grads(shape: tuple[int, ...], seed: int) -> Iterator[Tensor]:
    """Yield random numbers for a parameter, then for its gradients without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(shape, generator=generator, dtype=torch.float64)


def values_after_steps(
    step: Any, hypers: dict[str, Any], shape: tuple[int, ...], seed: int, last_only: bool = False
) -> list[Tensor]:
    """Return parameter and states after each of three steps, or after the last of them."""
    tensors = param_then_grads(shape, seed)
    param = next(tensors)
    state: dict[str, Any] = {}
    values: list[Tensor] = []
    for _ in range(3):
        param, state = step(hypers, param, next(tensors), state, torch.float64)
        after = [param.clone(), *(torch.as_tensor(v).clone() for v in state.values())]
        values = after if last_only else [*values, *after]
    return values


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = float(b.abs().max()) if b.numel() and b.isfinite().all() else 1.0
        a, b = a.double(), b.double()
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


@pytest.mark.parametrize("order", ["late", "early"])
@settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.generate])
@given(text=matrix_specs(), flags=FLAGS, seed=st.integers(0, 999))
def test_plans_compute_the_rule(order: Order, text: str, flags: dict[str, Any], seed: int) -> None:
    note(text)
    (algorithm,) = read_spec(Spec("Random", text, "<random>", 1))
    verify_algorithm(expand_reductions(to_ssa(algorithm)))
    hypers = {h.name: h.default for h in algorithm.hypers} | flags
    try:
        unhoisted = plans(algorithm, order)[0]
    except VerifyError:
        reject()  # the verifier refuses a rule that swaps two states between sweeps
    verify_plan(unhoisted, hoisted=False)
    hoisted = hoist_scalars(fold_denominators(unhoisted))
    note(to_text(hoisted))
    verify_plan(hoisted)
    for shape in SHAPES:
        expected = values_after_steps(lambda *a: evaluate(algorithm, *a), hypers, shape, seed)
        for plan in (unhoisted, hoisted):
            found = values_after_steps(
                lambda *a, plan=plan: run_plan(plan, *a), hypers, shape, seed
            )
            assert_same(found, expected)


def oracle_values(algorithm: Algorithm, hypers: dict[str, Any], seed: int) -> list[Tensor]:
    """Return the oracle's parameter and states for one tensor of every shape, after three steps."""
    return [
        value
        for shape in SHAPES
        for value in values_after_steps(
            lambda *a: evaluate(algorithm, *a), hypers, shape, seed, last_only=True
        )
    ]


def lowering_values(cls: Any, options: dict[str, Any], lowering: str, seed: int) -> list[Tensor]:
    functional = lowering == "functional"
    tensors_by_shape = [list(islice(param_then_grads(shape, seed), 4)) for shape in SHAPES]
    params = [
        Parameter(values[0].clone(), requires_grad=not functional) for values in tensors_by_shape
    ]
    optimizer = cls(params, **options, differentiable=functional)
    for step in range(1, 4):
        for param, values in zip(params, tensors_by_shape, strict=True):
            param.grad = values[step].clone()
        with use_lowering("forloop" if functional else lowering):
            optimizer.step()
    return [v for p in params for v in (p.detach(), *optimizer.state[p].values())]


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(text=matrix_specs(), flags=FLAGS, maximize=st.booleans(), seed=st.integers(0, 999))
def test_every_python_form_computes_the_rule(
    text: str, flags: dict[str, Any], maximize: bool, seed: int
) -> None:
    note(text)
    try:
        check(text, flags | {"maximize": maximize}, seed, ("forloop", "foreach", "functional"))
    except VerifyError:
        reject()


ONCE_FAILED = {
    "a sweep over the gradients alone": "    g = g / (1 + rms(g))",
    "a gradient that a branch replaces": "    if t > 1:\n        g = p**2 / sqrt(1 + r**2)",
    "numbers of a tuple beside a reduction": "    m = m * maximum(betas[1], mean(g))",
    "a row that only one branch computes": "    if fresh(m):\n        v = v * (q - row_mean(q))",
    "a value of one branch in a comparison": "    if s > 1:\n        s = SCALE\n    else:\n"
    "        p = v - mean(g)\n        r = row_sum(where(g < beta1, p, g)) / cols(p)",
    "two versions of a local": "    x = g * mean(m)\n    x = x / (1 + rms(x))\n"
    "    x = x - mean(x)\n    m = m + x * rms(x)",
}


@pytest.mark.parametrize("in_blocks", [False, True], ids=["whole", "in blocks"])
@pytest.mark.parametrize("case", ONCE_FAILED)
def test_rules_that_once_failed_agree_with_the_oracle(
    case: str, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        monkeypatch.setattr(parts, "CPU_ELEMENTS", 4)
    text = MATRIX_HEADER + ONCE_FAILED[case] + "\n" + FOOTER + MATRIX_FOOTER
    for flag in (False, True):
        options = {"flag_a": flag, "flag_b": flag, "c": 0.5, "maximize": True}
        forms = ("forloop", "foreach") if in_blocks else ("forloop", "foreach", "functional")
        check(text, options, 3, forms)


def check(text: str, options: dict[str, Any], seed: int, forms: tuple[str, ...]) -> None:
    """Check that every form computes the oracle's values."""
    spec = Spec("Random", text, "<random>", 1)
    algorithm = add_maximize(read_spec(spec)[0])
    hypers = {h.name: h.default for h in algorithm.hypers} | options
    expected = oracle_values(algorithm, hypers, seed)
    torch.set_default_dtype(torch.float64)  # scalar state has the default dtype
    try:
        for form in forms:
            found = lowering_values(optgen.load(spec), options, form, seed)
            assert_same(found, expected)
    finally:
        torch.set_default_dtype(torch.float32)
