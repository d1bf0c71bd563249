"""Test rules on whole matrices in C++: their elementwise parts are sweeps between matrix words."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from conftest import Golden
from fuzz import build
from lowerings.test_whole_matrices import (
    MATRIX,
    NS,
    RULES,
    SQUARES,
    largest_difference,
    spec_of_case,
    step_with,
)
from lowerings.test_whole_matrices import exact_orthogonalize as exact_orthogonalize
from spec_files import spec_file
from spec_texts import LR, spec
from torch import Tensor

import optgen
from optgen import emit
from optgen.ir.nodes import Assign, Call, assigns, refs
from optgen.ir.plan import Plan
from optgen.lowerings.function import FUNCTION
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.lowerings.outlined import OUTLINED
from optgen.passes.outline_sweeps import MOST_FUNCTIONS, outline_sweeps
from optgen.runtime.fused_cpu.toolchain import dtype_variants
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

BETAS = f"{LR}, beta=hyper(0.9, ge=0, lt=1), eps=hyper(1e-3), nesterov=flag(True)"
MOMENTS = 'm=state("exp_avg"), v=state("exp_avg_sq")'

RULES_WITH_SWEEPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # name: states, hyperparameters, body
    "adam between products": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "m = beta * m + (1 - beta) * g",
            "v = beta * v + (1 - beta) * (L @ g + g) ** 2",
            "L = lerp(L, g @ transpose(g), 1 - beta)",
            "R = lerp(R, transpose(g) @ g, beta)",
            "u = L @ (m / (sqrt(v) + eps)) @ R",
            "p = p - lr * u - lr * eps * p",
            "if nesterov:",
            "    p = p - lr * eps * g",
        ),
    ),
    "words in branches in branches": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "m = m + g",
            "if nesterov:",
            "    g = g + beta * m",
            "    if t % 3 == 0:",
            "        L = qr(L + g @ transpose(g))",
            "        v = beta * v + abs(L @ m)",
            "    elif t > 1:",
            "        v = v + g**2",
            "        m = m * v - L @ v",
            "    u = m + g",
            "else:",
            "    u = g - m",
            "    R = R + transpose(u) @ g",
            "p = p - lr * (u @ R + u / (v + eps))",
        ),
    ),
    "old values of what a sweep writes": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "before = p",
            "old = m",
            "m = beta * m + g",
            "x = g @ transpose(old)",
            "p = p - lr * (x @ m + old)",
            "L = L + x * x",
            "g = g * beta + before",
            "v = v + L @ g - before",
            "m = m + transpose(transpose(g) @ L)",
            "n = transpose(m)",
            "m = m - 0.5 * g",
            "R = R * eps + n @ m",
            "if nesterov:",
            "    n, m = transpose(m), transpose(n) * 0.5",
            "R = R + n @ g",
        ),
    ),
    "numbers that all tensors of a list share": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "if fresh(m):",
            "    m = gaussian(m, 0, 0)",
            "m = beta * m + g",
            "L = L + m @ transpose(m)",
            "x = gaussian(m, 0, 1)",
            "x = x * x + m",
            "v = v + L @ x",
            "R = R + transpose(x) @ g",
            "p = p - lr * v * eps",
            "if nesterov:",
            "    p = p - lr * beta * g",
        ),
    ),
    "copies of what a sweep writes": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "before = p",
            "x = before @ transpose(g)",
            "p = p - lr * g",
            "L = L + x @ before @ transpose(p)",
            "p = 2 * p",
            "u = p",
            "y = x @ u",
            "p = p - lr * y",
            "m = p",
            "p = m * beta",
            "y = L @ m",
            "p = p - eps * y * u",
            "v = v + L @ u",
            "if nesterov:",
            "    R = transpose(v) @ m",
            "    m = m * before",
            "m = m + p @ R",
        ),
    ),
    "conditions of elements": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "u = L @ g + g",
            "hit = u * g > 0",
            "m = where(hit and m < 1, m + u, beta * m)",
            "v = where(u > eps, v, where(nesterov, u, v * beta))",
            "L = where(L > 0.1, L, 0.5 * L + g @ transpose(g))",
            "R = R + 0.1",
            "p = p - lr * clamp(m, -1, 1) - lr * maximum(v, g @ R)",
        ),
    ),
    "orthogonalized under a flag": (
        'm=state("exp_avg"), v=state("exp_avg_sq", when="nesterov")',
        f"{NS}, beta=hyper(0.9), eps=hyper(1e-3), nesterov=flag(False)",
        (
            MATRIX,
            "m = lerp(m, g, 1 - beta)",
            "if nesterov:",
            "    v = lerp(v, g**2, 0.5)",
            "    p = p - lr * m / (sqrt(v) + eps)",
            "elif t % 2 == 1:",
            "    o = orthogonalize(lerp(g, m, beta), abc, 4, 1e-7)",
            "    p = p - lr * sqrt(rows(p)) * o",
            "    if eps:",
            "        p = p - lr * eps * p * o",
        ),
    ),
}


def spec_of(case: str) -> Spec:
    if case in RULES:
        text = spec_of_case(case).source
    else:
        states, hypers, body = RULES_WITH_SWEEPS[case]
        text = spec(*body, states=states, hypers=hypers)
    return Spec("Random", text, "<drawn>", 1)  # as the fuzzer names a rule


CASES = (
    *(
        "roots",
        "every other step",
        "swapped and copied",
        "values of other states",
        "equal products",
    ),
    *("permuted", "a permutation is stored before use", "flags and facts", "newton schulz"),
    *RULES_WITH_SWEEPS,
)
IN_FLOAT32 = ("roots", "adam between products")


@pytest.fixture(autouse=True, scope="module")
def kernels() -> Iterator[None]:
    """Compile the sweeps of all cases together, and use these kernels in every test."""
    rules = [build.load(spec_of(case).source) for case in CASES]
    for loaded_rule in rules:
        loaded_rule.types = dtype_variants.bits_of_dtypes([torch.float64])
    for case in IN_FLOAT32:
        rules[CASES.index(case)].types = build.TYPES
    build.compile_together(rules)
    assert not [r.refused_by_cpp for r in rules if r.refused_by_cpp]
    with build.batch_kernels(rules):
        yield


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_float64_agrees_with_the_oracle(case: str) -> None:
    assert largest_difference(spec_of(case), step_with("fused_cpu"), torch.float64) < 1e-11


@pytest.mark.parametrize("case", RULES_WITH_SWEEPS)
def test_the_other_arm_agrees_with_the_oracle(case: str) -> None:
    flags = {"nesterov": "under a flag" in case}
    assert largest_difference(spec_of(case), step_with("fused_cpu"), torch.float64, **flags) < 1e-11


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize("case", IN_FLOAT32)
def test_other_dtypes_are_near_the_oracle(case: str, dtype: torch.dtype, bound: float) -> None:
    assert largest_difference(spec_of(case), step_with("fused_cpu"), dtype) < bound


def test_values_round_to_sixteen_bits_only_when_stored() -> None:
    """All statements compute in float32; only the stored values are rounded to 16 bits."""
    found, expected = (
        param_after_four_steps(lowering, torch.bfloat16) for lowering in ("fused_cpu", "foreach")
    )
    assert torch.equal(found, expected)


def test_maximize_agrees_with_foreach() -> None:
    found, expected = (
        param_after_four_steps(name, torch.float64, maximize=True)
        for name in ("fused_cpu", "foreach")
    )
    assert torch.allclose(found, expected, rtol=1e-13)


def param_after_four_steps(lowering: str, dtype: torch.dtype, **flags: bool) -> Tensor:
    """Return the parameter of "adam between products" after four steps."""
    param = random_tensor((5, 4), 1).to(dtype).requires_grad_()
    optimizer = optgen.load(spec_of("adam between products"))([param], **flags)
    for number in range(4):
        param.grad = random_tensor((5, 4), 2 + number).to(dtype)
        step_with(lowering)(optimizer)
    return param.detach()


def random_tensor(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_step_does_not_change_gradients() -> None:
    params = [random_tensor((4, 3), 1).requires_grad_()]
    grad = params[0].grad = random_tensor((4, 3), 2)
    optimizer = optgen.load(spec_of("words in branches in branches"))(params, maximize=True)
    step_with("fused_cpu")(optimizer)
    assert params[0].grad is grad
    assert torch.equal(grad, random_tensor((4, 3), 2))


@pytest.mark.parametrize("case", ["adam between products", "old values of what a sweep writes"])
def test_any_memory_layout_agrees_with_foreach(case: str) -> None:
    """One parameter is transposed, the other has gaps and a gradient that repeats one number."""
    final_params = []
    for lowering in ("fused_cpu", "foreach"):
        params = [
            random_tensor((4, 3), 1).mT.contiguous().mT.requires_grad_(),
            random_tensor((6, 4), 3),
        ]
        params[1] = params[1][::2].requires_grad_()
        optimizer = optgen.load(spec_of(case))(params)
        for number in range(3):
            params[0].grad = random_tensor((4, 3), number)
            params[1].grad = random_tensor((1, 1), number).expand(3, 4)
            step_with(lowering)(optimizer)
        final_params.append(torch.cat([param.detach().flatten() for param in params]))
    assert torch.allclose(final_params[0], final_params[1], rtol=1e-12, atol=1e-14)


def test_empty_parameters_take_a_step() -> None:
    params = [torch.zeros(0, 3).requires_grad_(), torch.zeros(2, 0, 4).requires_grad_()]
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer = optgen.load(spec_of("adam between products"))(params)
    step_with("fused_cpu")(optimizer)
    assert optimizer.state[params[0]]["left"].shape == (0, 0)
    assert not optimizer.state[params[1]]["right"].any()


def test_fused_cpp_is_the_default_on_the_cpu() -> None:
    params = [random_tensor((4, 3), 1).requires_grad_()]
    params[0].grad = random_tensor((4, 3), 2)
    optimizer = optgen.load(spec_of("adam between products"))(params)
    optimizer.step()
    expected = "group 0: fused C++: CPU tensors, float64; torch computes the matrices"
    assert optgen.explain(optimizer) == expected


def test_a_copy_steps_as_its_original() -> None:
    params = [random_tensor((4, 3), 1).requires_grad_()]
    optimizer = optgen.load(spec_of("adam between products"))(params)
    final_params = []
    for stepped in (optimizer, copy.deepcopy(optimizer)):
        (param,) = stepped.param_groups[0]["params"]
        for number in range(3):
            param.grad = random_tensor((4, 3), number)
            step_with("fused_cpu")(stepped)
        final_params.append(param.detach())
    assert torch.equal(*final_params)


def test_equal_sweeps_share_a_function() -> None:
    """The plans for vectors and for matrices call one function for equal sweeps."""
    states = 'm=state("exp_avg"), L=state("left", shape=("rows", "rows"), when="factored")'
    body = ("m = m + g", "p = p - lr * m", "if factored(p):", "    L = L + p @ transpose(g)")
    (algorithm,) = read_spec(Spec("Made", spec(*body, states=states), "made.py", 1))
    outlined = outline_sweeps(algorithm)
    calls = [called_sweeps(plan) for plan in outlined.plans]
    assert len(outlined.plans) == 2
    assert len(outlined.functions) < sum(map(len, calls))


def called_sweeps(plan: Plan) -> list[str]:
    return [
        s.target.name for s in assigns(plan.sweeps[0].body) if s.target.name.startswith("sweep")
    ]


def test_a_state_that_is_read_and_written_goes_through_memory_once() -> None:
    """The second moment and the quotient that reads it are one sweep, which waits for a product."""
    (algorithm,) = read_spec(spec_file("soap"))
    factored = outline_sweeps(algorithm).plans[0]
    (call,) = (
        stmt.value
        for stmt in assigns(factored.sweeps[0].body)
        if stmt.target.name.startswith("sweep") and "exp_avg_sq" in names_read(stmt)
    )
    assert isinstance(call, Call)
    assert len(call.args) == 6  # three lists and three numbers


def names_read(stmt: Assign) -> set[str]:
    return {ref.name for ref in refs(stmt.value)}


def rule_with_products(products: int) -> Spec:
    """Return a rule with one sweep more than it has statements with products of matrices."""
    body = [f"m = {n}.5 * m + g * 2 - p @ transpose(m) @ g" for n in range(products)]
    text = spec(MATRIX, *body, "p = p - lr * m @ transpose(m) @ m", states='m=state("m")')
    return Spec("Made", text, "made.py", 1)


@pytest.mark.parametrize(("products", "sweeps"), [(3, 4), (MOST_FUNCTIONS, 0)])
def test_a_rule_with_too_many_sweeps_is_not_outlined(products: int, sweeps: int) -> None:
    (algorithm,) = read_spec(rule_with_products(products))
    assert len(outline_sweeps(algorithm).functions) == sweeps


def test_the_reason_of_an_unfused_step_names_the_limit() -> None:
    """Words of linear algebra are not the reason, because rules with fewer sweeps have them too."""
    params = [random_tensor((3, 4), 1).requires_grad_()]
    params[0].grad = random_tensor((3, 4), 2)
    reason = "the rule needs 17 sweeps between matrix words, more than 16"
    cls = optgen.load(rule_with_products(MOST_FUNCTIONS))
    assert str(optgen.explain(cls(params))).endswith(reason)
    with pytest.raises(RuntimeError, match=reason):
        cls(params, fused=True).step()


def test_a_rule_that_reduces_over_parameters_has_no_outlined_sweeps() -> None:
    body = ("n = norm(g, over='all')", "p = p - lr * g @ transpose(g) @ g / (1 + n)")
    (algorithm,) = read_spec(Spec("Made", spec(MATRIX, *body), "made.py", 1))
    assert not outline_sweeps(algorithm).functions


@pytest.mark.parametrize("case", ["adam between products", "orthogonalized under a flag"])
def test_code_is_printed_as_recorded(case: str, golden: Golden) -> None:
    (algorithm,) = read_spec(spec_of(case))
    ruff = emit.find_ruff()
    golden.check(emit.render(algorithm, OUTLINED, ruff), "outlined")
    first = outline_sweeps(algorithm).functions[0]
    golden.check(emit.render(first, FUSED_CPU, ruff), "sweep1-cpp")
    golden.check(emit.render(first, FUNCTION, ruff), "sweep1")
