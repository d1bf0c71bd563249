"""Test rules on whole matrices: for-loop, foreach and functional form against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from conftest import Golden
from lowerings.capture import capture_on_cpu
from spec_texts import LR, spec
from torch import Tensor, linalg

import optgen
from optgen import emit, use_lowering
from optgen.ir.evaluate import evaluate
from optgen.lowerings.foreach import FOREACH
from optgen.lowerings.forloop import FORLOOP
from optgen.passes.latex import to_latex
from optgen.passes.plan_rule import why_uncut
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec
from optgen.verification.compare_with_evaluator import iterate_exactly

MATRIX = 'require(ndim(p) >= 2, "no matrix: {shape}")'
SQUARES = 'L=state("left", shape=("rows", "rows")), R=state("right", shape=("cols", "cols"))'
STATES_OF_FACTORED = 'm=state("exp_avg"), L=state("left", shape=("rows", "rows"), when="factored")'
NS = f"{LR}, abc=hyper((1.5, -0.5, 0.0, 2.0, -1.5, 0.5))"
GRAMS = ("L = L + g @ transpose(g)", "R = 0.5 * R + transpose(g) @ g")

RULES = {
    "roots": (
        SQUARES,
        MATRIX,
        *GRAMS,
        "p = p - lr * inverse_root(L, 4, lr) @ g @ inverse_root(R, 4, 1)",
    ),
    "every other step": (
        SQUARES,
        MATRIX,
        "if t % 2 == 0:",
        "    L = L + qr(g @ transpose(g) + identity(L))",
        "elif t > 4:",
        "    R = R / 2 + transpose(g) @ eigenvectors(L + 2 * identity(L)) @ g",
        "p = p - lr * (L @ g + g @ R)",
    ),
    "swapped and copied": (
        'm=state("exp_avg"), S=state("square", shape=("rows", "rows"))',
        MATRIX,
        "m, p = p, p - lr * S @ m - lr * g",
        "S = S * 0.5 + p @ transpose(m)",
    ),
    "values of other states": (
        'm=state("exp_avg"), n=state("before"), U=state("square", shape=("rows", "rows")),'
        ' W=state("other", shape=("rows", "rows"))',
        MATRIX,
        "if t % 2 == 0:",
        "    m, n = n, m",
        "else:",
        "    m = m + g",
        "U = transpose(U) + g @ transpose(m)",
        "if t == 3:",
        "    W = U",
        "    U = transpose(U)",
        "elif t > 4:",
        "    W = transpose(W)",
        "p = p - lr * (W + U) @ n - lr * g",
    ),
    "equal products": (
        'v=state("exp_avg_sq"), U=state("square", shape=("rows", "rows"))',
        MATRIX,
        "U = 0.5 * U + g @ transpose(g)",
        "v = v + (U @ g) ** 2",
        "if t % 2 == 0:",
        "    g = g + U @ g / (1 + norm(transpose(g) @ U))",
        "else:",
        "    U = U + g @ transpose(g)",
        "    v = v + transpose(U) @ g @ transpose(g) @ U @ g",
        "p = p - lr * U @ g / (1 + v**2)",
    ),
    "permuted": (
        'v=state("exp_avg_sq")',
        MATRIX,
        "S = descending(row_mean(g))",
        "T = descending(transpose(col_mean(g)))",
        "if t % 2 == 0:",
        "    v = S @ v @ transpose(T) + g**2",
        "    S = descending(row_mean(v))",
        "else:",
        "    v = v + S @ (S @ g) @ transpose(T)",
        "X = descending(row_mean(p))",
        "p = p - lr * (S @ v) - lr * X @ g @ transpose(descending(transpose(col_sum(v))))",
    ),
    "permutations as matrices": (
        'v=state("exp_avg_sq"), U=state("square", shape=("rows", "rows"))',
        MATRIX,
        "S = descending(row_mean(g))",
        "T = descending(transpose(col_mean(g)))",
        "X = descending(row_mean(p))",
        "v = S @ v + transpose(S) @ g @ transpose(T) @ T",
        "U = 0.5 * U + X",
        "p = p - lr * (U @ v @ T) - lr * X @ g",
    ),
    "a permutation is stored after use": (
        'U=state("square", shape=("rows", "rows"))',
        MATRIX,
        "p = p - lr * U @ g",
        "U = descending(row_mean(g))",
    ),
    "a permutation is stored before use": (
        'U=state("square", shape=("rows", "rows"))',
        MATRIX,
        "U = descending(row_mean(g))",
        "p = p - lr * U @ g",
    ),
    "flags and facts": (
        STATES_OF_FACTORED,
        "m = where(g > 0 and fast, m, g)",
        "if factored(p):",
        "    L = where(fast or L > 1, L, 0.5 * L) + g @ transpose(g) / trace(g @ transpose(g))",
        "    g = where(fast, L @ m, m)",
        "p = p - lr * g - lr * m",
    ),
    "reductions": (
        SQUARES,
        MATRIX,
        *GRAMS,
        "u = L @ g / (1 + norm(L)) * row_rms(L) / (1 + col_mean(R)) + mean(R) / (1 + rms(R))",
        "v = g / (1 + row_mean(g @ R)) / (1 + mean(row_sum(L)) + max_abs(diag(L)))",
        "p = p - lr * (u + v * mean(col_norm(L)))",
    ),
    "rows and columns": (
        'r=state("rows", shape="row"), k=state("cols", shape="col")',
        MATRIX,
        "r = r + g @ transpose(k) + row_mean(g)",
        "k = k / 2 + transpose(r) @ g",
        "p = p - lr * (r @ k + descending(r) @ g * diag(g @ transpose(g)))",
    ),
    "newton schulz": (
        "",
        MATRIX,
        "if t > 1:",
        "    g = orthogonalize(g @ transpose(g) @ g, abc, 4, 1e-7)",
        "p = p - lr * orthogonalize(orthogonalize(g, abc, 1, 1e-7), abc, 3, 1e-7)",
    ),
    "equal values under other names": (
        'm=state("exp_avg"), L=state("left", shape=("rows", "rows"))',
        MATRIX,
        "x = tanh(g) + p",
        "y = x @ transpose(x) / (1 + norm(x) ** 2)",
        "m = 0.5 * m + g",
        "z = tanh(g) + p",
        "p = p - lr * y @ x",
        "k = z @ transpose(z) / (1 + norm(z) ** 2)",
        "if t % 2 == 0:",
        "    a = 0.5 * k + identity(k)",
        "    L = L / 2 + a * trace(a)",
        "    m = m - a @ m / 2",
        "b = 0.5 * k + identity(k)",
        "p = p - lr * (b @ x + y @ z + L @ m + k @ g / (1 + norm(b)))",
    ),
    "names of products are overwritten": (
        'm=state("exp_avg"), L=state("left", shape=("rows", "rows"))',
        MATRIX,
        "L = 0.5 * L + g @ transpose(g) / (1 + norm(g) ** 2)",
        "x = L @ g",
        "x = x + p",
        "if t % 2 == 0:",
        "    m = L @ p",
        "    m = 0.5 * m + x",
        "    x = L @ p",
        "y = 0.5 * g + m",
        "z = L @ y",
        "y = y * z",
        "k = 0.5 * g + m",
        "p = p - lr * (L @ g + x + L @ p + y + L @ k)",
    ),
    "triangles": (
        'm=state("exp_avg"), L=state("left", shape=("rows", "rows"))',
        MATRIX,
        "L = 0.5 * L + lower(g @ transpose(g)) + upper(p @ transpose(p)) / 4",
        "y = cholesky(g @ transpose(g) + identity(L))",
        "m = 0.5 * m + upper(g)",
        "u = solve_transposed(y, solve_triangular(y, m)) + lower(p) / 8",
        "if t % 2 == 0:",
        "    u = solve_triangular(L * L + identity(L), u)",
        "    L = L - row_ones(L) @ (col_ones(L) @ L) / (rows(p) + 1)",
        "p = p - lr * (u + y @ row_ones(L) @ col_ones(g) / (1 + rows(p)))",
    ),
    "one decomposition": (
        'L=state("left", shape=("rows", "rows")), r=state("rows", shape="row")',
        MATRIX,
        "L = 0.5 * L + g @ transpose(g)",
        "V = eigenvectors(L + identity(L)) * transpose(1 / sqrt(eigenvalues(L + identity(L))))",
        "u = V @ transpose(eigenvectors(L + identity(L))) @ g",
        "if t % 2 == 0:",
        "    r = eigenvalues(L)",
        "    u = u + eigenvectors(L) @ (transpose(eigenvectors(L)) / (1 + r)) @ p",
        "elif t == 3:",
        "    r = r / (1 + max_abs(eigenvalues(L)))",
        "p = p - lr * u / (1 + r)",
    ),
    "a condition on a scalar state": (
        'L=state("left", shape=("rows", "rows")), s=state("mu", shape="scalar", init=1)',
        MATRIX,
        "s = s * 0.9",
        "if s < 0.8 and fresh(L) or t > 2:",
        "    L = L + s * g @ transpose(g)",
        "p = p - lr * L @ g / s - lr * g",
    ),
}
SHAPES = ((4, 3), (3, 5), (4, 3), (2, 3, 4), (1, 2), (2, 3, 4))


def spec_of_case(case: str) -> Spec:
    states, *body = RULES[case]
    hypers = NS if "newton" in case else LR
    hypers += ", fast=flag(False)" if "flags" in case else ""
    return Spec("Made", spec(*body, states=states, hypers=hypers), "made.py", 1)


@pytest.fixture(autouse=True)
def exact_orthogonalize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `orthogonalize` compute in the dtype of its operand."""
    monkeypatch.setattr("optgen.runtime.newton_schulz.iterate", iterate_exactly)


def largest_difference(
    spec: Spec, step: Callable[[torch.optim.Optimizer], None], dtype: torch.dtype, **flags: Any
) -> float:
    """Return the largest difference from the oracle after six steps, relative to the oracle."""
    (algorithm,) = read_spec(spec)
    hypers = {h.name: h.default for h in algorithm.hypers} | flags
    generator = torch.Generator().manual_seed(7)

    def random_tensor(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)

    start = [random_tensor(shape) for shape in SHAPES]
    differentiable = flags.pop("differentiable", False)
    params = [x.clone().requires_grad_(not differentiable) for x in start]
    optimizer = optgen.load(spec)(params, differentiable=differentiable, **flags)
    expected: list[tuple[Tensor, dict[str, Any]]] = [(x.double(), {}) for x in start]
    for _ in range(6):
        for index, param in enumerate(params):
            param.grad = random_tensor(param.shape)
            value, state = expected[index]
            expected[index] = evaluate(algorithm, hypers, value, param.grad, state, index=index)
        step(optimizer)
    largest = 0.0
    for param, (value, state) in zip(params, expected, strict=True):
        found_state = optimizer.state[param]
        assert found_state.keys() == state.keys()
        for found, expected_value in [(param, value), *((found_state[k], state[k]) for k in state)]:
            expected_value = torch.as_tensor(expected_value, dtype=torch.float64)
            assert found.shape == expected_value.shape
            error = (
                found.detach().double() - expected_value
            ).abs().max() / expected_value.abs().max().clamp(1e-6)
            largest = max(largest, error.item())
    return largest


def step_with(lowering: str) -> Callable[[torch.optim.Optimizer], None]:
    """Return a function that takes a step by this lowering."""

    def step(optimizer: torch.optim.Optimizer) -> None:
        with use_lowering(lowering):  # type: ignore[arg-type]
            optimizer.step()

    return step


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("case", RULES)
def test_float64_agrees_with_the_oracle(case: str, lowering: str) -> None:
    assert largest_difference(spec_of_case(case), step_with(lowering), torch.float64) < 1e-11
    flags = {"fast": True} if "flags" in case else {"maximize": False}
    assert (
        largest_difference(spec_of_case(case), step_with(lowering), torch.float64, **flags) < 1e-11
    )


@pytest.mark.parametrize("case", RULES)
def test_the_functional_form_agrees_with_the_oracle(case: str) -> None:
    options = {"differentiable": True}
    assert (
        largest_difference(spec_of_case(case), lambda o: o.step(), torch.float64, **options) < 1e-11
    )


@pytest.mark.parametrize("case", [case for case in RULES if case != "newton schulz"])
def test_a_captured_step_agrees_with_the_oracle(case: str) -> None:
    """The step computes both arms of a branch, and selects by a condition on the device."""

    def step(optimizer: torch.optim.Optimizer) -> None:
        with capture_on_cpu():
            optimizer.step()

    assert largest_difference(spec_of_case(case), step, torch.float64, capturable=True) < 1e-11


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_a_learning_rate_may_be_a_tensor(lowering: str) -> None:
    lr = torch.tensor(0.1, dtype=torch.float64)
    source = spec_of_case("roots").source.replace("ge=0)", 'ge=0, tensor="always")')
    assert (
        largest_difference(Spec("Made", source, "", 1), step_with(lowering), torch.float64, lr=lr)
        < 1e-11
    )


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize(
    "case", ["roots", "reductions", "rows and columns", "newton schulz", "triangles"]
)
def test_other_dtypes_are_near_the_oracle(
    case: str, dtype: torch.dtype, bound: float, lowering: str
) -> None:
    assert largest_difference(spec_of_case(case), step_with(lowering), dtype) < bound


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu", "differentiable"])
def test_eigenvalues_and_eigenvectors_come_from_one_decomposition(
    lowering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(name: str) -> Callable[[Tensor], Any]:
        of_torch = getattr(linalg, name)
        return lambda x: (calls.append(name), of_torch(x))[1]  # type: ignore[func-returns-value]

    for name in ("eigh", "eigvalsh"):
        monkeypatch.setattr(linalg, name, counted(name))
    param = torch.nn.Parameter(torch.eye(40), requires_grad=lowering != "differentiable")
    is_differentiable = lowering == "differentiable"
    optimizer = optgen.load(spec_of_case("one decomposition"))(
        [param], differentiable=is_differentiable
    )
    expected = {1: ["eigh"], 2: ["eigh", "eigh"], 3: ["eigh", "eigvalsh"], 4: ["eigh", "eigh"]}
    for step in expected:
        param.grad = torch.diag(torch.arange(1.0, 41.0))
        calls.clear()
        step_with("forloop" if is_differentiable else lowering)(optimizer)
        assert calls == expected[step]


@pytest.mark.parametrize(
    "case", ["roots", "every other step", "permuted", "one decomposition", "triangles"]
)
def test_code_is_printed_as_recorded(case: str, golden: Golden) -> None:
    (algorithm,) = read_spec(spec_of_case(case))
    golden.check(emit.render(algorithm, FORLOOP, emit.find_ruff()), "forloop")
    golden.check(emit.render(algorithm, FOREACH, emit.find_ruff()), "foreach")
    golden.check(to_latex(algorithm), "latex")


@pytest.mark.parametrize("case", RULES)
def test_no_kernel_is_printed_for_the_whole_rule(case: str) -> None:
    (algorithm,) = read_spec(spec_of_case(case))
    assert why_uncut(algorithm)
    files = {path for path in emit.render_all(algorithm, None) if "/" not in path}
    assert files - {"outlined.py"} == {"__init__.py", "forloop.py", "foreach.py"}
