"""Test rules on thin matrices: for-loop, foreach and functional form against the oracle."""

from __future__ import annotations

import pytest
import torch
from conftest import Golden
from lowerings.capture import capture_on_cpu
from lowerings.test_whole_matrices import largest_difference, step_with
from spec_texts import LR, spec

from optgen import emit
from optgen.lowerings.foreach import FOREACH
from optgen.lowerings.forloop import FORLOOP
from optgen.passes.latex import to_latex
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

MATRIX = 'require(ndim(p) >= 2, "no matrix: {shape}")'
Q = 'Q=state("Q", shape=("cols", "rank"), init=0.5)'
U = 'U=state("U", shape=("rows", "rank"), init="lr")'
V = 'V=state("V", shape=("rank", "rows"))'
W = 'W=state("W", shape=("rank", "cols"), init=-1)'
S = 'S=state("S", shape=("rank", "rank"), init=1)'
K = 'k=state("stream", shape="scalar", init="index")'
HYPERS = f"{LR}, rank=hyper(2, ge=1)"

RULES = {
    "power iteration": (
        f"{Q}, {K}",
        MATRIX,
        "if fresh(Q):",
        "    Q = gaussian(Q, 3, k)",
        "P = qr(g @ Q)",
        "Q = transpose(g) @ P",
        "p = p - lr * P @ transpose(Q)",
    ),
    "every shape": (
        f"{Q}, {U}, {V}, {W}, {S}",
        MATRIX,
        "Q, U = transpose(g) @ U + Q, 0.5 * U + g @ Q",
        "V, W = transpose(U) / 2 + V, V @ g + lr * W",
        "S = 0.1 * S + W @ Q",
        "p = p - lr * (U @ S @ W + transpose(V) @ transpose(Q)) / (1 + norm(S @ S))",
    ),
    "means": (
        f"{Q}, {V}, {S}",
        MATRIX,
        "Q = tanh(transpose(g) @ g @ Q / (1 + mean(Q)**2 + row_mean(Q)**2 + col_mean(Q)**2))",
        "V = V / (1 + rms(V)) + row_rms(V) + col_rms(V) + max_abs(S) + mean(row_sum(V))",
        "S = lerp(S, V @ g @ Q, 0.5) / (1 + norm(S)) + mean(S) + sum(col_norm(S)) / 8",
        "p = p - lr * g * (mean(V) + rms(transpose(Q)) + mean(row_mean(Q)) + mean(col_sum(S)))",
    ),
    "square matrices of the rank": (
        f"{U}, {S}",
        MATRIX,
        "U = 0.5 * U + g @ transpose(g) @ gaussian(U, 1, 2) / (1 + trace(S)**2)",
        "S = inverse_root(transpose(U) @ U, 2, 0.5) + identity(S) * diag(S)",
        "E = eigenvalues(S @ transpose(S))",
        "S = descending(E) @ S / (1 + transpose(E)) + qr(S + 3 * identity(S)) / 10",
        "p = p - lr * U @ S @ transpose(U) @ g - lr * g",
    ),
    "singular vectors": (
        f"{Q}",
        MATRIX,
        "if t % 3 == 1:",
        "    Q = singular_vectors(transpose(g), rank)",
        "u = singular_vectors(g, rank)",
        "p = p - lr * g @ Q @ transpose(Q) - lr * u @ (transpose(u) @ g) - lr * g",
    ),
    "conditions": (
        f"{Q}, {U}",
        MATRIX,
        "Q = where(Q > 0.1 and Q < 1 or lr > 3, Q, -Q) + maximum(transpose(g) @ U, 0.125)",
        "U = where(U > col_norm(Q) * row_norm(g), U, 0.5) * clamp(U, -1, 1)",
        "p = p - lr * U @ transpose(Q) - lr * g",
    ),
    "a small rank and a large one": (
        f"{W}",
        MATRIX,
        "W = W / rank + minimum(rank, minimum(rows(p), cols(p))) * mean(W)",
        "p = p - lr * g @ transpose(W) @ W",
    ),
    "where it is factored": (
        'm=state("exp_avg"), Q=state("Q", shape=("cols", "rank"), when="factored", init=1)',
        "m = lerp(m, g, 0.5)",
        "if factored(p):",
        "    Q = transpose(m) @ m @ Q / (1 + mean(Q))",
        "    m = m @ Q @ transpose(Q) / (1 + norm(Q)**2)",
        "p = p - lr * m",
    ),
    "where it is tall": (
        'Q=state("Q", shape=("cols", "rank"), when="tall", init=1), '
        'U=state("U", shape=("rows", "rank"), when="not tall", init=1)',
        MATRIX,
        "if tall(p):",
        "    Q = transpose(g) @ g @ Q / (1 + norm(Q))",
        "    g = g @ Q @ transpose(Q)",
        "else:",
        "    U = g @ transpose(g) @ U / (1 + norm(U))",
        "    g = U @ transpose(U) @ g",
        "p = p - lr * g / (1 + norm(g))",
    ),
}


def spec_of_case(case: str, rank: int) -> Spec:
    states, *body = RULES[case]
    hypers = HYPERS.replace("hyper(2", f"hyper({rank}")
    return Spec("Made", spec(*body, states=states, hypers=hypers), "made.py", 1)


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("rank", [1, 2, 100])
@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("case", RULES)
def test_float64_agrees_with_the_oracle(case: str, lowering: str, rank: int) -> None:
    assert largest_difference(spec_of_case(case, rank), step_with(lowering), torch.float64) < 1e-11


@pytest.mark.parametrize("case", RULES)
def test_the_functional_form_agrees_with_the_oracle(case: str) -> None:
    options = {"differentiable": True}
    assert (
        largest_difference(spec_of_case(case, 2), lambda o: o.step(), torch.float64, **options)
        < 1e-11
    )


@pytest.mark.parametrize("case", RULES)
def test_a_captured_step_agrees_with_the_oracle(case: str) -> None:
    def step(optimizer: torch.optim.Optimizer) -> None:
        with capture_on_cpu():
            optimizer.step()

    assert largest_difference(spec_of_case(case, 2), step, torch.float64, capturable=True) < 1e-11


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("case", ["means", "where it is factored", "where it is tall"])
def test_other_dtypes_are_near_the_oracle(
    case: str, dtype: torch.dtype, bound: float, lowering: str
) -> None:
    assert largest_difference(spec_of_case(case, 2), step_with(lowering), dtype) < bound


@pytest.mark.parametrize("case", ["power iteration", "where it is tall", "means"])
def test_code_is_printed_as_recorded(case: str, golden: Golden) -> None:
    (algorithm,) = read_spec(spec_of_case(case, 2))
    golden.check(emit.render(algorithm, FORLOOP, emit.find_ruff()), "forloop")
    golden.check(emit.render(algorithm, FOREACH, emit.find_ruff()), "foreach")
    golden.check(to_latex(algorithm), "latex")


@pytest.mark.parametrize("case", RULES)
def test_no_kernel_is_printed_for_the_whole_rule(case: str) -> None:
    (algorithm,) = read_spec(spec_of_case(case, 2))
    files = {path for path in emit.render_all(algorithm, None) if "/" not in path}
    assert files - {"outlined.py"} == {"__init__.py", "forloop.py", "foreach.py"}
