"""Test all stages in two seconds: a rule passes through them, and Adam takes a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import optgen
import optgen.optim
from optgen import emit
from optgen.ir.evaluate import evaluate
from optgen.ir.print_ir import to_text
from optgen.lowerings import LOWERINGS
from optgen.passes.plan_rule import plan
from optgen.spec.read_spec import read_spec

RULE = '''from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Heavy(p, g, /, b=state("momentum_buffer"), *, lr=hyper(1e-2, ge=0), beta=hyper(0.9, ge=0)):
    """A heavy ball."""
    b = beta * b + g
    p = p - lr * b
'''


def test_a_rule_passes_through_every_stage(tmp_path: Path) -> None:
    """A spec is read, printed, planned, and rendered to every file."""
    path = tmp_path / "heavy.py"
    path.write_text(RULE)
    (algorithm,) = read_spec(path)

    assert "b = beta * b + g" in to_text(algorithm)
    assert plan(algorithm).sweeps
    start = torch.ones(2, dtype=torch.float64)
    hypers = {"lr": 0.5, "beta": 0.9}
    after, _ = evaluate(algorithm, hypers, start, 2 * start, {"momentum_buffer": start})
    torch.testing.assert_close(after, start - 0.5 * (0.9 + 2))
    texts = emit.render_all(algorithm, emit.require_ruff())
    assert set(texts) == {each.filename for each in LOWERINGS if each.name != "outlined"}
    assert all("b = beta * b + g" in text for name, text in texts.items() if name != "__init__.py")


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_step_equals_torchs(lowering: str) -> None:
    ours = torch.nn.Parameter(torch.linspace(-1, 1, 7, dtype=torch.float64))
    theirs = torch.nn.Parameter(ours.detach().clone())
    optimizers = optgen.optim.Adam([ours], lr=0.1), torch.optim.Adam([theirs], lr=0.1)

    with optgen.use_lowering(lowering):
        for optimizer, parameter in zip(optimizers, (ours, theirs), strict=True):
            for scale in (1, -2):
                parameter.grad = scale * torch.linspace(0, 3, 7, dtype=torch.float64)
                optimizer.step()

    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
