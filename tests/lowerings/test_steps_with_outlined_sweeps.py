"""Test steps of rules on whole matrices in C++, whose sweeps are compiled functions."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from fuzz import build
from lowerings.rules_with_outlined_sweeps import RULES_WITH_SWEEPS, rule_with_products, spec_of
from lowerings.test_whole_matrices import exact_orthogonalize as exact_orthogonalize
from lowerings.test_whole_matrices import largest_difference, step_with
from torch import Tensor

import optgen
from optgen.passes.outline_sweeps import MOST_FUNCTIONS
from optgen.runtime.toolchain import dtype_variants

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
        rules[CASES.index(case)].dtype_bits = build.DRAWN_DTYPE_BITS
    build.compile_together(rules)
    assert not [r.refused_by_cpp for r in rules if r.refused_by_cpp]
    with build.batch_kernels(rules):
        yield


@pytest.mark.one_case_in(4)
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
    expected = (
        "group 0: fused C++: CPU tensors, float64; "
        "torch computes the matrices, and 100% of the other memory traffic is that of fused sweeps"
    )
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


def test_statements_beyond_the_limit_are_calls_of_torch() -> None:
    rule = rule_with_products(MOST_FUNCTIONS)
    assert 0.9 < optgen.load(rule).rule.fused_share < 1
    assert largest_difference(rule, step_with("fused_cpu"), torch.float64) < 1e-11
