"""Test compositions of rules whose groups share values, and of rules that know 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from spec_texts import DECORATOR, spec

import optgen
from optgen import modifiers, use_lowering

NARROW = 'lr=hyper(0.1, ge=0), c=flag(True), n=fixed("narrow")'
STATES = 'm=state("m"), k=state("k", when="n")'
UPDATE = ("if c:", "    m = 2 * m", "p = p - lr * m")
RULES = {
    "in the arm of another flag": (
        *("if c:", "    if n:", "        k = k + g", "        m = m + k", "    else:"),
        *("        m = m + 2 * g", "p = p - lr * m"),
    ),
    "in an elif": (
        *("if c:", "    m = m + 2 * g", "elif n:", "    k = k + g", "    m = m + k"),
        "p = p - lr * m",
    ),
    "negated": ("if not n:", "    m = m + g", "else:", "    k = k + g", "    m = m + k", *UPDATE),
    "with another flag": (
        *("if n and c:", "    k = k + g", "    m = m + k", "else:", "    m = m + g"),
        *UPDATE,
    ),
    "in a where": ("x = where(n, 2, 1)", "if n:", "    k = k + g", "m = m + x * g", *UPDATE),
}
"""Rules whose step without `n` is 2 * lr * g."""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    return path


def step(cls: Any, *rates: float) -> list[float]:
    """Take a step of one parameter in each group; return their values."""
    params = [torch.ones(3, requires_grad=True) for _ in rates]
    for param in params:
        param.grad = torch.full((3,), 0.5)
    groups = [{"params": [param], "lr": lr} for param, lr in zip(params, rates, strict=True)]
    with use_lowering("forloop"):
        cls(groups).step()
    return [param[0].item() for param in params]


@pytest.mark.parametrize("case", RULES)
def test_a_narrow_flag_goes_wherever_it_stands(case: str, tmp_path: Path) -> None:
    text = spec(*RULES[case], states=STATES, hypers=NARROW)

    composed = optgen.compose(write(tmp_path, text), modifiers.cautious)

    assert step(composed, 0.1) == pytest.approx([1 - 2 * 0.1 * 0.5])


def test_what_only_the_narrow_arm_reads_goes_with_it(tmp_path: Path) -> None:
    """A hyperparameter, its item, a variable and a state; the text of a composition reads them."""
    text = spec(
        *("low, high = bounds", "x = gain * g", "if c:", "    y = 2 * x", "else:", "    y = x"),
        *("if n:", "    k = k + high * y", "    m = m + k", "else:", "    m = m + 2 * g"),
        "p = p - lr * m - 0 * low",
        states='m=state("m"), k=state("k")',
        hypers=f"{NARROW}, gain=hyper(1), bounds=hyper((1, 2))",
        decorator=DECORATOR.replace(
            ")",
            ', keywords=("lr", "c", "gain", "bounds"), group=("lr", "c", "n", "gain", "bounds"))',
        ),
    )

    composed = optgen.compose(write(tmp_path, text), modifiers.cautious)

    assert step(composed, 0.1) == pytest.approx([1 - 2 * 0.1 * 0.5])
    (group,) = composed([torch.ones(3)]).param_groups
    assert {"lr", "bounds"} < {*group}
    assert not {"c", "n", "gain"} & {*group}


def test_a_dtype_of_states_leaves_the_numbers_of_all_groups() -> None:
    cls: Any = optgen.compose("prodigy", modifiers.state_dtype("bfloat16"))
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    optimizer = cls([param])
    optimizer.step()

    assert optimizer.state[param]["exp_avg"].dtype == torch.bfloat16


def test_a_derived_rule_keeps_what_its_groups_must_share(tmp_path: Path) -> None:
    """`lr` of Prodigy is one value or 0, also where a derived spec gives it another default."""
    decorator = DECORATOR.replace(")", ', base="Prodigy")')
    text = spec("", decorator=decorator, hypers="lr=hyper(0.5, ge=0)")
    path = write(tmp_path, text)

    for cls in (optgen.load(path), optgen.compose(path, modifiers.clip_value(9.0))):
        step(cls, 0.5, 0.5)
        with pytest.raises(RuntimeError, match="takes one lr for all groups"):
            step(cls, 0.5, 0.25)
