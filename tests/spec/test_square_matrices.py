"""Test rules with square states and linear algebra: valid rules, and the reader's errors."""

from __future__ import annotations

import pytest
from conftest import Golden
from spec_texts import LR, UPDATE, read, spec

from optgen.passes.plan_rule import why_uncut
from optgen.spec.errors import SpecError

MATRIX = 'require(ndim(p) == 2, "no matrix: {shape}")'
L = 'L=state("left", shape=("rows", "rows"))'
NEWTON_SCHULZ = f"{LR}, abc=hyper((3.4, -4.8, 2.0)), k=hyper(5), eps=hyper(1e-7)"

ERRORS = {
    "a product that does not fit": spec(MATRIX, "p = p - lr * g @ g"),
    "a product with a number": spec(MATRIX, "p = p - g @ lr"),
    "a product of numbers": spec(MATRIX, "p = p - lr @ lr * g"),
    "a product of any parameter": spec("p = p - lr * g @ transpose(g) @ g"),
    "a sum that does not fit": spec(MATRIX, "p = p - lr * (g + g @ transpose(g))"),
    "a where that does not fit": spec(MATRIX, "p = p - lr * where(g > 0, g, transpose(g))"),
    "a comparison that does not fit": spec(MATRIX, "p = p - lr * where(g > transpose(g), g, 0)"),
    "answers that do not fit": spec(
        MATRIX, "p = p - lr * where(g > 0 and g @ transpose(g) > 0, g, 0)"
    ),
    "a row beside columns": spec(MATRIX, "u = transpose(row_mean(g)) * g", UPDATE),
    "a square becomes a tensor": spec(MATRIX, "L = L @ g", UPDATE, states=L),
    "a tensor becomes a square": spec(MATRIX, "p = p - lr * g @ transpose(g)"),
    "roots of a tensor": spec(MATRIX, "p = p - lr * inverse_root(g, 4, 0) @ g"),
    "a root that is a tensor": spec(MATRIX, "p = p - inverse_root(g @ transpose(g), g, 0) @ g"),
    "a root of a norm": spec(MATRIX, "p = p - inverse_root(g @ transpose(g), 4, norm(g)) @ g"),
    "a root without eps": spec(MATRIX, "p = p - inverse_root(g @ transpose(g), 4) @ g"),
    "a root of zero": spec(MATRIX, "p = p - inverse_root(g @ transpose(g), 2 - 2, 0) @ g"),
    "a negative root": spec(MATRIX, "p = p - inverse_root(g @ transpose(g), -4, 0) @ g"),
    "a negative eps": spec(MATRIX, "p = p - inverse_root(g @ transpose(g), 4, -1e-3) @ g"),
    "a negative eps of orthogonalize": spec(
        MATRIX, "p = p - orthogonalize(g, abc, 5, -1)", hypers="abc=hyper((3.4, -4.8, 2.0))"
    ),
    "half a step of orthogonalize": spec(
        MATRIX, "p = p - orthogonalize(g, abc, 2.5, 0)", hypers="abc=hyper((3.4, -4.8, 2.0))"
    ),
    "descending of a tensor": spec(MATRIX, "p = p - lr * descending(g) @ g"),
    "the identity of a number": spec(MATRIX, "p = p - lr * identity(lr) @ g"),
    "a triangle of rows": spec(MATRIX, "p = p - lr * lower(row_mean(g)) * g"),
    "a triangle of a number": spec(MATRIX, "p = p - upper(lr) * g"),
    "the cholesky factor of a tensor": spec(MATRIX, "p = p - lr * cholesky(g)"),
    "a solution with a triangle that is not square": spec(
        MATRIX, "p = p - lr * solve_triangular(lower(g), g)"
    ),
    "a solution with too few rows": spec(
        MATRIX, "p = p - lr * transpose(solve_transposed(g @ transpose(g), transpose(g)))"
    ),
    "a solution of a number": spec(MATRIX, "p = p - g * solve_triangular(g @ transpose(g), lr)"),
    "ones of a number": spec(MATRIX, "p = p - row_ones(lr) * g"),
    "a reduction of a number": spec(MATRIX, "p = p - lr * g * row_sum(trace(g @ transpose(g)))"),
    "a square state of any parameter": spec("L = L + 1", UPDATE, states=L),
    "a square state from p": spec(
        MATRIX, UPDATE, states='L=state("left", shape=("rows", "rows"), init="p")'
    ),
    "the shape of the parameter": spec(states='L=state("left", shape=("rows", "cols"))'),
    "a shape of numbers": spec(states='L=state("left", shape=(2, 2))'),
    "orthogonalize of row values": spec(
        MATRIX, "p = p - lr * orthogonalize(row_sum(g), abc, k, eps) * g", hypers=NEWTON_SCHULZ
    ),
    "orthogonalize by four numbers": spec(
        MATRIX,
        "p = p - lr * orthogonalize(g, abc, 5, 1e-7)",
        hypers=f"{LR}, abc=hyper((3.4, -4.8, 2.0, 1.0))",
    ),
    "matmul": spec(MATRIX, "p = p - lr * matmul(g, g)"),
    "eigh": spec(MATRIX, "p = p - lr * eigh(g @ transpose(g)) @ g"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_error(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(ERRORS[case])
    assert raised.value.hint
    golden.check(str(raised.value))


VALID = {
    "roots that are not whole": (MATRIX, "p = p - inverse_root(g @ transpose(g), 1.5, lr) @ g"),
    "nested": (MATRIX, "p = p - lr * inverse_root(g @ transpose(g) + 2, 2, lr) @ g"),
    "under a condition of a step": (
        MATRIX,
        "if t % 3 == 0:",
        "    g = g @ transpose(g) @ g",
        UPDATE,
    ),
    "under factored": ("if factored(p):", "    g = qr(g @ transpose(g)) @ g", UPDATE),
    "diagonals of rows": (MATRIX, "p = p - lr * g * diag(g @ transpose(g))"),
    "diagonals of columns": (MATRIX, "p = p - lr * g * transpose(diag(transpose(g) @ g))"),
    "rows times columns": (MATRIX, "p = p - lr * row_mean(g) @ col_mean(g)"),
    "a number per matrix": (MATRIX, "p = p - lr * g / trace(g @ transpose(g))"),
    "names of ops that are not called": (
        MATRIX,
        "trace = 2 * g",
        "p = p - lr * trace @ transpose(g) @ g",
    ),
}


@pytest.mark.parametrize("case", VALID)
def test_a_valid_rule_is_read(case: str) -> None:
    algorithm = read(spec(*VALID[case]))
    assert not algorithm.elementwise
    assert "whole matrices" in why_uncut(algorithm)


def test_orthogonalize_in_a_branch_has_no_fused_lowering() -> None:
    body = (MATRIX, "if t > 2:", "    g = orthogonalize(g, abc, k, eps)", UPDATE)
    assert (
        why_uncut(read(spec(*body, hypers=NEWTON_SCHULZ)))
        == "the rule has `orthogonalize` inside a branch"
    )
    # The plan for each shape has no branch on `factored`.
    body = ("if factored(p):", "    g = orthogonalize(g, abc, k, eps)", UPDATE)
    assert not why_uncut(read(spec(*body, hypers=NEWTON_SCHULZ)))
