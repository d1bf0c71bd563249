"""Test a rule with many reductions, one after another, in fused C++."""

from __future__ import annotations

import torch

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

ROUNDS = 12


def test_more_than_32_steps_and_values() -> None:
    """Each round reduces rows of the previous round's result."""
    rounds = [
        line
        for n in range(1, ROUNDS + 1)
        for line in (
            f"r{n} = row_mean(abs(u{n - 1}))",
            f"u{n} = u{n - 1} / (1 + r{n}) + {n} * g * norm(u{n - 1})",
        )
    ]
    body = ['require(ndim(p) == 2, "{shape}")', "u0 = g", *rounds, f"p = p - lr * u{ROUNDS}"]
    head = "@optimizer()\ndef Large(p, g, /, *, lr=hyper(0.1)):"
    text = "\n    ".join([f'from optgen.spec import *\n\n{head}\n    """Made up."""', *body, ""])
    spec = Spec("Large", text.rstrip(" "), "large.py", 1)
    (algorithm,) = read_spec(spec)
    generator = torch.Generator().manual_seed(1)
    old, grad = (torch.randn(5, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    param = torch.nn.Parameter(old.clone())
    param.grad = grad
    optimizer = optgen.load(spec)([param])
    with use_lowering("fused_cpu"):
        optimizer.step()
    expected, _ = evaluate(algorithm, {"lr": 0.1}, old, grad, {})
    torch.testing.assert_close(param.detach(), expected, rtol=1e-11, atol=0)
