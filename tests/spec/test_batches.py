"""Test the warning about whole reductions beside words that act on each matrix of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_texts import LR, read, spec

from optgen.cli.check import check
from optgen.ir.ops import WHOLE_REDUCTIONS
from optgen.spec.semantic_checks import batch_warning

MUON = "c=hyper((3.4445, -4.775, 2.0315))"
ORTHOGONAL = "o = orthogonalize(g, c, 5, 1e-7)"
MIXED = (ORTHOGONAL, "p = p - lr * o / norm(o)")


def rule(*body: str, require: str = "factored(p)", hypers: str = MUON) -> str:
    return spec(f'require({require}, "matrices")', *body, hypers=f"{LR}, {hypers}")


WARNED = {
    "orthogonalize and norm": (rule(*MIXED), "`norm`", "`orthogonalize`"),
    "any parameter with two axes or more": (
        rule(*MIXED, require="ndim(p) >= 2"),
        "`norm`",
        "`orthogonalize`",
    ),
    "a product and rms": (
        rule("p = p - lr * g @ transpose(g) @ g / rms(g) * c[0]"),
        "`rms`",
        "`@`",
    ),
    "one of two arms": (
        rule(ORTHOGONAL, "if ndim(p) > 2:", "    o = o / max_abs(o)", "p = p - lr * o"),
        "`max_abs`",
        "`orthogonalize`",
    ),
    "any ratio": (rule(ORTHOGONAL, "p = p - lr * o * sum(g * o)"), "`sum`", "`orthogonalize`"),
}
NOT_WARNED = {
    "matrices only": rule(*MIXED, require="ndim(p) == 2"),
    "fewer than three axes": rule(*MIXED, require="factored(p) and ndim(p) < 3"),
    "rows": rule(ORTHOGONAL, "p = p - lr * o / row_norm(o)"),
    "a norm of each matrix": rule(ORTHOGONAL, "p = p - lr * o / sqrt(trace(o @ transpose(o)))"),
    **{
        f"{word} over each matrix": rule(ORTHOGONAL, f'p = p - lr * o * {word}(o, over="matrix")')
        for word in WHOLE_REDUCTIONS
    },
    "over all parameters": rule(ORTHOGONAL, 'p = p - lr * o / norm(g, over="all")'),
    "no matrix word": rule("p = p - lr * g / norm(g) * c[0]"),
    "a branch for matrices": rule(
        ORTHOGONAL, "if ndim(p) == 2:", "    o = o / norm(o)", "p = p - lr * o"
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_a_mixed_rule_is_warned_of(case: str) -> None:
    text, reduction, word = WARNED[case]
    warning = batch_warning(read(text))
    assert warning is not None
    assert warning.message == (
        f"warning: {reduction} reduces all matrices of a batch, and {word} acts on each"
    )
    assert text.splitlines()[warning.place.line - 1][warning.place.column - 1 :].startswith(
        reduction.strip("`")
    )


@pytest.mark.parametrize("case", NOT_WARNED)
def test_other_rules_are_not_warned_of(case: str) -> None:
    assert batch_warning(read(NOT_WARNED[case])) is None


def test_check_prints_the_warning_below_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "mixed.py"
    path.write_text(WARNED["orthogonalize and norm"][0])
    ok, warning = check([str(path)])
    assert str(ok).startswith("Made: ok")
    assert isinstance(warning, str)
    first, _, caret, hint = warning.splitlines()
    assert 'norm(x, over="matrix")' in hint
    assert ": warning: `norm` reduces" in first
    assert caret.strip() == "^"
    assert "require(ndim(p) == 2" in hint
