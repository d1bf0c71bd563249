"""Test fused C++ steps that call a matrix op for some parameters only: under a shape predicate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from spec_texts import LR, spec
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.emit import render
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

SHAPES = ((3, 5), (7,), (5, 3), (), (2, 4, 3))
BODY = (
    "m = 0.9 * m + g",
    "if {fact}(p):",
    "    p = p - lr * orthogonalize(m, cs, 5, 1e-7)",
    "else:",
    "    p = p - lr * m",
)


def text(fact: str) -> str:
    body = (line.format(fact=fact) for line in BODY)
    hypers = f"{LR}, cs=hyper((3.4445, -4.775, 2.0315))"
    return spec(*body, states='m=state("m")', hypers=hypers, inputs="p, g")


@pytest.mark.parametrize("fact", ["factored", "tall"])
def test_other_parameters_step_without_the_op(fact: str, tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(text(fact))
    kind = optgen.load(path)
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator) for shape in SHAPES]
    sides = [[Parameter(start.clone()) for start in starts] for _ in range(2)]
    optimizers = [kind(side) for side in sides]
    for _ in range(3):
        grads = [torch.randn(shape, generator=generator) for shape in SHAPES]
        for side, optimizer, lowering in zip(
            sides, optimizers, ("fused_cpu", "forloop"), strict=True
        ):
            for param, grad in zip(side, grads, strict=True):
                param.grad = grad.clone()
            with use_lowering(lowering):
                optimizer.step()
    for fused, plain in zip(*sides, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fact", ["factored", "tall"])
def test_the_runtime_reads_for_which_parameters_an_op_is(fact: str) -> None:
    (algorithm, *_) = read_spec(Spec("made", text(fact), "made.py", 1))

    assert f"orthogonalize(m_matrix, cs, 5, 1e-07) if {fact}" in render(algorithm, FUSED_CPU, None)
