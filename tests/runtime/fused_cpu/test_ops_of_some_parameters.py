"""Test rules that call a matrix op for some parameters only: those whose shape has a fact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from spec_texts import LR, spec
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.lowerings.optimizer.rule_text import rule_of
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

SHAPES = ((3, 5), (7,), (5, 3), (), (2, 4, 3))
MATRICES = ((3, 5), (5, 3), (2, 4, 3))
BODY = (
    "m = 0.9 * m + g",
    "if {fact}(p):",
    "    p = p - lr * orthogonalize(m, cs, 5, 1e-7)",
    "else:",
    "    p = p - lr * m",
)


def spec_text(fact: str) -> str:
    body = (line.format(fact=fact) for line in BODY)
    hypers = f"{LR}, cs=hyper((3.4445, -4.775, 2.0315))"
    return spec(*body, states='m=state("m")', hypers=hypers, inputs="p, g")


def check_against_for_loop(path: Path, shapes: Sequence[tuple[int, ...]]) -> None:
    """Check that three fused steps of parameters of these shapes equal steps of the for-loop."""
    cls = optgen.load(path)
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator) for shape in shapes]
    # The first list is stepped by fused_cpu, the second by the for-loop.
    param_lists = [[Parameter(start.clone()) for start in starts] for _ in range(2)]
    optimizers = [cls(params) for params in param_lists]
    for _ in range(3):
        grads = [torch.randn(shape, generator=generator) for shape in shapes]
        for params, optimizer, lowering in zip(
            param_lists, optimizers, ("fused_cpu", "forloop"), strict=True
        ):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.clone()
            with use_lowering(lowering):
                optimizer.step()
    for fused, plain in zip(*param_lists, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fact", ["factored", "tall"])
def test_parameters_without_the_fact_step_without_the_op(fact: str, tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(spec_text(fact))
    check_against_for_loop(path, SHAPES)


@pytest.mark.parametrize("extra_line", ["", "m = m + orthogonalize(g, cs, 2, 1e-7)"])
@pytest.mark.parametrize("other_update", ["orthogonalize(2 * m, cs, 3, 1e-7)", "m"])
def test_parameters_may_need_different_ops(
    extra_line: str, other_update: str, tmp_path: Path
) -> None:
    lines = [BODY[0], extra_line, *BODY[1:-1], f"    p = p - lr * {other_update}"]
    body = [line.format(fact="tall") for line in lines if line]
    hypers = f"{LR}, cs=hyper((3.4445, -4.775, 2.0315))"
    path = tmp_path / "made.py"
    path.write_text(
        spec(
            'require(ndim(p) > 1, "matrices")',
            *body,
            states='m=state("m")',
            hypers=hypers,
            inputs="p, g",
        )
    )
    assert bool(optgen.load(path).rule.why_uncut) == bool(extra_line or other_update != "m")
    check_against_for_loop(path, MATRICES)


@pytest.mark.parametrize("fact", ["factored", "tall"])
def test_the_printed_call_of_an_op_names_its_fact(fact: str) -> None:
    (algorithm, *_) = read_spec(Spec("made", spec_text(fact), "made.py", 1))

    arguments = "('cs', 5, 1e-7), facts=((('FACT', True),),))".replace("FACT", fact)
    assert f"'orthogonalize', 'm_matrix', {arguments}" in rule_of(algorithm)["matrix_calls"]
