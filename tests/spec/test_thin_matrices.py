"""Test rules with thin states and a rank: valid rules, and the reader's errors."""

from __future__ import annotations

import pytest
from conftest import Golden
from spec_texts import LR, UPDATE, read, spec

from optgen.passes.plan_rule import why_uncut
from optgen.spec.errors import SpecError

MATRIX = 'require(ndim(p) >= 2, "no matrix: {shape}")'
Q = 'Q=state("Q", shape=("cols", "rank"))'
U = 'U=state("U", shape=("rows", "rank"))'
S = 'S=state("S", shape=("rank", "rank"))'
RANK = f"{LR}, rank=hyper(4, ge=1)"
BODY = ("Q = 0.5 * Q + transpose(g) @ g @ Q", "p = p - lr * g @ Q @ transpose(Q)")


def thin(*body: str, states: str = Q, hypers: str = RANK, inputs: str = "p, g, t") -> str:
    """Return a rule for matrices, by default with the thin state Q."""
    return spec(MATRIX, *body, states=states, hypers=hypers, inputs=inputs)


ERRORS = {
    "no hyperparameter": thin(*BODY, hypers=LR),
    "a rank that may be 0": thin(*BODY, hypers=f"{LR}, rank=hyper(4, ge=0)"),
    "a rank without a bound": thin(*BODY, hypers=f"{LR}, rank=hyper(4)"),
    "a rank above 0": thin(*BODY, hypers=f"{LR}, rank=hyper(4, gt=0)"),
    "a rank that is not whole": thin(*BODY, hypers=f"{LR}, rank=hyper(2.5, ge=1)"),
    "a rank that may be None": thin(*BODY, hypers=f"{LR}, rank=hyper(4, ge=1, optional=True)"),
    "a rank in a tensor": thin(*BODY, hypers=f'{LR}, rank=hyper(4, ge=1, tensor="always")'),
    "several ranks": thin(*BODY, hypers=f"{LR}, rank=hyper((4, 5), ge=1)"),
    "a rank that is a flag": thin(*BODY, hypers=f"{LR}, rank=flag(True)"),
    "an unknown size in a shape": thin(*BODY, states='Q=state("Q", shape=("cols", "r"))'),
    "a rank by itself": thin(*BODY, states='Q=state("Q", shape="rank")'),
    "rows by cols": thin(*BODY, states='Q=state("Q", shape=("cols", "rows"))'),
    "a thin state of any parameter": spec(*BODY, states=Q, hypers=RANK),
    "a copy of the parameter": thin(*BODY, states='Q=state("Q", shape=("cols", "rank"), init="p")'),
    "an assigned rank": thin("rank = 3", *BODY),
    "a product from the wrong side": thin("Q = g @ Q", UPDATE),
    "a product that needs a transpose": thin("Q = Q + g @ Q", UPDATE),
    "a sum of two thin matrices": thin("U = U + Q", UPDATE, states=f"{Q}, {U}"),
    "a thin matrix beside its transpose": thin("Q = Q * transpose(Q)", UPDATE),
    "a thin matrix beside the gradient": thin("p = p - lr * g * Q"),
    "an update of low rank": thin("Q = transpose(g) @ g @ Q", "p = p - lr * Q"),
    "a thin matrix becomes another": thin("Q = Q @ transpose(Q)", UPDATE),
    "numbers per column of the rank": thin("p = p - lr * g * col_norm(Q)"),
    "qr of a wide matrix": thin("Q = transpose(qr(transpose(Q)))", UPDATE),
    "qr of the gradient": thin("p = p - lr * qr(g)", states=""),
    "a root of a thin matrix": thin("Q = Q @ inverse_root(Q, 2, 0)", UPDATE),
    "the diagonal of a thin matrix": thin("Q = Q * diag(Q)", UPDATE),
    "rows of a number per row": thin("Q = Q * row_mean(row_norm(Q))", UPDATE),
    "vectors of another number": thin("p = p - lr * singular_vectors(g, 3) @ transpose(Q)"),
    "vectors of the rank plus one": thin("Q = singular_vectors(transpose(g), rank + 1)", UPDATE),
    "vectors without a rank": spec(MATRIX, "p = p - lr * singular_vectors(g, lr) * norm(g)"),
    "vectors of an unbounded rank": spec(
        MATRIX, "u = singular_vectors(g, rank)", UPDATE, hypers=f"{LR}, rank=hyper(2)"
    ),
    "vectors of a row": thin("Q = singular_vectors(transpose(col_norm(g)), rank)", UPDATE),
    "vectors of a number": thin("Q = Q * singular_vectors(lr, rank)", UPDATE),
    "vectors of any parameter": spec("u = singular_vectors(g, rank)", UPDATE, hypers=RANK),
    "vectors of one argument": thin("Q = singular_vectors(transpose(g))", UPDATE),
    "svd": thin("Q = svd(transpose(g))", UPDATE),
    "gaussian numbers of no matrix": thin("Q = Q * gaussian(lr, 1, 2)", UPDATE),
    "gaussian numbers by a tensor": thin("Q = Q + gaussian(Q, norm(g), 2)", UPDATE),
    "gaussian numbers without steps": thin("Q = Q + gaussian(Q, 1, 2)", UPDATE, inputs="p, g"),
    "gaussian numbers of two arguments": thin("Q = Q + gaussian(1, 2)", UPDATE),
    "gaussian numbers of any parameter": spec("p = p - lr * gaussian(g, 1, 2) * g"),
    "randn": thin("Q = randn(Q, 1, 2)", UPDATE),
    "a rounded thin matrix": thin("Q = rounded(Q)", UPDATE),
    "a state of tall parameters": spec(
        *BODY, states='Q=state("Q", shape=("cols", "rank"), when="tall")', hypers=RANK
    ),
    "a state of parameters that are not tall": spec(
        "if not tall(p):",
        *(f"    {line}" for line in BODY),
        "else:",
        f"    {UPDATE}",
        states='Q=state("Q", shape=("cols", "rank"), when="not tall")',
        hypers=RANK,
    ),
    "tall of the gradient": thin("if tall(g):", *(f"    {line}" for line in BODY)),
    "a tall requirement": spec('require(tall(p), "{shape}")', UPDATE),
    "a name that is a predicate": spec("tall = 2 * g", "p = p - lr * tall"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_error(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(ERRORS[case])
    assert raised.value.hint
    golden.check(str(raised.value))


VALID = {
    "power iteration": thin("Q = qr(transpose(g) @ g @ Q)", "p = p - lr * g @ Q @ transpose(Q)"),
    "a rank that is read": thin(*BODY, "p = p - lr / minimum(rank, rows(p)) * g"),
    "a product of the rank": thin(
        "S = S + transpose(singular_vectors(g, rank)) @ g @ transpose(g) @ qr(U)",
        "U = U @ inverse_root(S @ transpose(S), 2, 1) + row_mean(U)",
        "p = p - lr * U @ (diag(S) * transpose(U)) @ g / (1 + norm(S))",
        states=f"{U}, {S}",
    ),
    "numbers per column": thin(
        "Q = Q / (1 + col_norm(Q)) * transpose(diag(transpose(Q) @ Q))", UPDATE
    ),
    "vectors of a local": spec(
        MATRIX, "u = singular_vectors(g, rank)", "p = p - lr * u @ transpose(u) @ g", hypers=RANK
    ),
    "names of words that are not called": thin(
        "gaussian = transpose(g) @ g", "Q = gaussian @ Q", "p = p - lr * g @ Q @ transpose(Q)"
    ),
    "a rank that is an ordinary number": spec(
        "p = p - lr * rank * g", hypers=f"{LR}, rank=hyper(2.5)"
    ),
    "tall parameters": spec(
        "if tall(p):",
        *(f"    {line}" for line in BODY),
        "else:",
        f"    {UPDATE}",
        states='Q=state("Q", shape=("cols", "rank"), when="tall")',
        hypers=RANK,
    ),
}


@pytest.mark.parametrize("case", VALID)
def test_a_valid_rule_is_read(case: str) -> None:
    algorithm = read(VALID[case])
    has_rank = case != "a rank that is an ordinary number"
    assert algorithm.has_rank is has_rank
    assert bool(why_uncut(algorithm)) is has_rank
