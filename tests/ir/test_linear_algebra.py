"""Test the meaning of linear algebra: each op by the property that defines it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optgen.ir.meanings import MEANINGS
from optgen.ir.ops import LINEAR_ALGEBRA

SHAPES = [(4, 4), (1, 1), (3, 5, 5), (2, 1, 3, 3)]


def gram(shape: tuple[int, ...]) -> Tensor:
    """Return symmetric matrices without small eigenvalues."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return x @ x.mT + torch.eye(shape[-1], dtype=torch.float64)


def apply_op(name: str, *args: Tensor | float) -> Tensor:
    result: Tensor = MEANINGS[name](*args)
    return result


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_powers_of_an_inverse_root_give_the_inverse(shape: tuple[int, ...]) -> None:
    x = gram(shape)
    root = apply_op("inverse_root", x, 3, 0.5)
    eye = apply_op("identity", x)
    assert eye.shape == x.shape
    assert_close(root @ root @ root @ (x + 0.5 * eye), eye)
    assert_close(root, root.mT)


def test_an_eigenvalue_below_zero_counts_as_zero() -> None:
    x = torch.diag(torch.tensor([-1.0, 4.0], dtype=torch.float64))
    assert_close(
        apply_op("inverse_root", x, 2, 0.25),
        torch.diag(torch.tensor([2.0, 4.25**-0.5], dtype=x.dtype)),
    )


def test_an_eigenvalue_that_rounding_hides_counts_as_eight_machine_epsilons() -> None:
    x = torch.diag(torch.tensor([100.0, 1e-20, 0.0, -1e-20], dtype=torch.float64))
    root = apply_op("inverse_root", x, 2, 0, 2.0**-23)
    hidden = (8 * 2.0**-23 * 100) ** -0.5
    assert_close(root, torch.diag(torch.tensor([0.1, hidden, hidden, hidden], dtype=x.dtype)))
    # An eps above this share counts as usual.
    root = apply_op("inverse_root", x, 2, 0.01, 2.0**-23)
    visible = torch.tensor([100.01, 0.01, 0.01, 0.01], dtype=x.dtype)
    assert_close(root, torch.diag(visible**-0.5))


def test_the_root_of_zeros_is_zero_without_eps() -> None:
    x = torch.zeros(2, 3, 3, dtype=torch.float64)
    assert not apply_op("inverse_root", x, 4, 0).any()
    assert_close(
        apply_op("inverse_root", x, 4, 16.0), torch.eye(3, dtype=x.dtype).repeat(2, 1, 1) / 2
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_eigenvectors_are_scaled_by_their_eigenvalues(shape: tuple[int, ...]) -> None:
    x = gram(shape)
    vectors, values = apply_op("eigenvectors", x), apply_op("eigenvalues", x)
    assert values.shape == (*shape[:-1], 1)
    assert_close(x @ vectors, vectors * apply_op("transpose", values))
    assert_close(vectors.mT @ vectors, apply_op("identity", x))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_qr_is_orthogonal_and_leaves_a_triangle(shape: tuple[int, ...]) -> None:
    x = gram(shape)
    q = apply_op("qr", x)
    assert_close(q.mT @ q, apply_op("identity", x))
    assert_close((q.mT @ x).tril(-1), torch.zeros_like(x))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_diag_trace_and_descending_are_those_of_torch(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    d = apply_op("diag", x)
    assert d.shape == (*shape[:-1], 1)
    assert_close(apply_op("trace", x), (x * apply_op("identity", x)).sum((-2, -1), keepdim=True))
    p = apply_op("descending", d)
    assert torch.equal((p @ d).squeeze(-1), d.squeeze(-1).sort(-1, descending=True).values)
    assert torch.equal(p @ p.mT, apply_op("identity", x))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cholesky_is_a_lower_triangle_whose_square_is_the_matrix(shape: tuple[int, ...]) -> None:
    x = gram(shape)
    factor = apply_op("cholesky", x)
    assert (apply_op("diag", factor) > 0).all()
    assert torch.equal(factor, apply_op("lower", factor))
    assert_close(factor @ factor.mT, x)
    assert torch.equal(apply_op("cholesky", x.tril()), factor)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_solutions_give_the_right_side_again(shape: tuple[int, ...]) -> None:
    x, y = gram(shape), gram(shape)[..., :2]
    triangle = apply_op("lower", x)
    assert_close(triangle @ apply_op("solve_triangular", x, y), y)
    assert_close(triangle.mT @ apply_op("solve_transposed", x, y), y)


@pytest.mark.parametrize("shape", [*SHAPES, (5, 2), (2, 3, 4)], ids=str)
def test_triangles_meet_in_the_diagonal_and_ones_add_up(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows, cols = (torch.arange(size) for size in shape[-2:])
    on_diagonal = rows.unsqueeze(-1) == cols
    lower, upper = apply_op("lower", x), apply_op("upper", x)
    assert torch.equal(lower + upper - x.where(on_diagonal, 0.0), x)
    assert not lower[..., rows.unsqueeze(-1) < cols].any()
    assert not upper[..., rows.unsqueeze(-1) > cols].any()
    assert_close(x @ apply_op("row_ones", x.mT), x.sum(-1, keepdim=True))
    assert_close(apply_op("col_ones", x.mT) @ x, x.sum(-2, keepdim=True))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 0.0, -1.0])
def test_the_cholesky_factor_of_a_matrix_that_has_none_is_nan(bad: float) -> None:
    x = gram((3, 4, 4))
    x[1, 3, 3] = bad
    found = apply_op("cholesky", x)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], apply_op("cholesky", gram((3, 4, 4)))[[0, 2]])
    x = gram((3, 4, 4))
    x[:, 0, 3] = bad  # above the diagonal, which is not read
    assert torch.equal(apply_op("cholesky", x), apply_op("cholesky", gram((3, 4, 4))))


@pytest.mark.parametrize("name", ["solve_triangular", "solve_transposed"])
def test_a_system_without_a_solution_gives_nan(name: str) -> None:
    right = apply_op(name, gram((3, 4, 4)), gram((3, 4, 4)))
    for bad_operand, place, bad in (
        (0, (1, 2, 2), 0.0),
        (0, (1, 2, 0), torch.inf),
        (1, (1, 0, 2), torch.nan),
    ):
        operands = [gram((3, 4, 4)), gram((3, 4, 4))]
        operands[bad_operand][place] = bad
        found = apply_op(name, *operands)
        assert found[1].isnan().all()
        assert torch.equal(found[[0, 2]], right[[0, 2]])
    triangle = gram((3, 4, 4))
    triangle[:, 0, 3] = torch.nan  # not read
    assert torch.equal(apply_op(name, triangle, gram((3, 4, 4))), right)


@pytest.mark.parametrize("name", ["eigenvectors", "eigenvalues", "inverse_root"])
def test_the_decomposition_of_a_matrix_with_inf_is_nan(name: str) -> None:
    x = gram((3, 2, 2))
    x[1, 0, 1] = torch.inf
    options = (2, 0.1) if name == "inverse_root" else ()
    found, expected = apply_op(name, x, *options), apply_op(name, gram((3, 2, 2)), *options)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("shape", [(5, 2), (4, 4), (3, 5, 1), (2, 1, 3, 2)], ids=str)
def test_qr_of_a_thin_matrix_spans_its_columns(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    q = apply_op("qr", x)
    assert q.shape == shape
    assert_close(q.mT @ q, torch.eye(shape[-1], dtype=x.dtype).expand(*shape[:-2], -1, -1))
    assert_close(q @ q.mT @ x, x)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)], ids=str)
def test_singular_vectors_give_the_nearest_matrix_of_rank_two(shape: tuple[int, ...]) -> None:
    """The projection onto the two singular vectors leaves the smallest remainder."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    u = apply_op("singular_vectors", x, 2)
    assert u.shape == (*shape[:-1], 2)
    assert_close(u.mT @ u, torch.eye(2, dtype=x.dtype).expand(*shape[:-2], 2, 2))
    values = torch.linalg.svdvals(x)
    assert_close(torch.linalg.svdvals(u.mT @ x), values[..., :2])
    assert_close(torch.linalg.matrix_norm(x - u @ u.mT @ x), values[..., 2:].norm(dim=-1))


def test_singular_vectors_of_a_matrix_that_is_not_finite_are_nan() -> None:
    x = gram((3, 2, 2))
    x[1, 0, 1] = torch.nan
    found, expected = (
        apply_op("singular_vectors", x, 1),
        apply_op("singular_vectors", gram((3, 2, 2)), 1),
    )
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


def test_every_op_has_a_test() -> None:
    tested = {"@", "transpose", "identity", "diag", "trace", "qr", "descending", "inverse_root"}
    tested |= {"eigenvectors", "eigenvalues", "singular_vectors", "cholesky", "lower", "upper"}
    tested |= {"solve_triangular", "solve_transposed", "row_ones", "col_ones"}
    assert set(LINEAR_ALGEBRA) == tested | {"gaussian"}  # see test_random_numbers
