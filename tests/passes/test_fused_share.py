"""Test the share of elementwise memory traffic that runs in fused sweeps."""

from __future__ import annotations

import re

import pytest
from spec_files import CATALOGUE
from spec_texts import read, spec

from optgen.passes.fused_share import fused_share
from optgen.passes.plan_rule import why_uncut
from optgen.spec.read_spec import read_spec

MATRIX = 'require(ndim(p) == 2, "{shape}")'
PAGE = CATALOGUE.parent / "docs" / "what-runs-where.md"


@pytest.mark.parametrize(
    ("body", "share"),
    [
        # The sweep reads and writes p, and reads the product.
        (("p = p - lr * (g @ transpose(g) @ g)",), 1),
        # torch changes the sign in one call, which reads the gradient and writes a tensor.
        (("g = -g", "p = p - lr * (g @ transpose(g) @ g)"), 3 / 5),
        # torch scales, and then selects from two tensors.
        (("x = where(t > 1, 2 * g, p)", "p = p - lr * (x @ transpose(g) @ g)"), 3 / 8),
        # A branch on a flag has its default; of any other branch both arms count.
        (("if slow:", "    g = -g", "p = p - lr * (g @ transpose(g) @ g)"), 1),
        (("if t > 1:", "    g = -g", "p = p - lr * (g @ transpose(g) @ g)"), 3 / 5),
    ],
)
def test_shares_are_those_counted_by_hand(body: tuple[str, ...], share: float) -> None:
    flag = ", slow=flag(False)" if "if slow:" in body else ""
    rule = read(spec(MATRIX, *body, hypers=f"lr=hyper(0.1){flag}"))
    assert fused_share(rule) == pytest.approx(share)


def test_the_table_of_the_catalogue_has_each_share() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+%) \|$", PAGE.read_text(), re.MULTILINE)
    algorithms = [a for path in sorted(CATALOGUE.glob("[!_]*.py")) for a in read_spec(path)]
    uncut = [a for a in algorithms if a.base is None and not a.is_function and why_uncut(a)]
    shares = {a.name: fused_share(a) for a in uncut}
    assert dict(rows) == {name: f"{share:.0%}" for name, share in shares.items()}
    assert min(shares.values()) >= 0.9
