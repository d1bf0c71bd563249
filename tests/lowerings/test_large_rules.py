"""Test rules with many reductions, with many names, and with many lines that nothing reads."""

from __future__ import annotations

import torch

import optgen
from optgen import emit, use_lowering
from optgen.ir.evaluate import evaluate
from optgen.ir.nodes import assigns
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.passes.plan_rule import plans
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

NUM_ROUNDS = 12  # enough for more than 32 steps and more than 32 values


def test_cpp_computes_more_than_32_steps_and_values() -> None:
    """Each round reduces rows of the previous round's result."""
    rounds = [
        line
        for n in range(1, NUM_ROUNDS + 1)
        for line in (
            f"r{n} = row_mean(abs(u{n - 1}))",
            f"u{n} = u{n - 1} / (1 + r{n}) + {n} * g * norm(u{n - 1})",
        )
    ]
    body = ['require(ndim(p) == 2, "{shape}")', "u0 = g", *rounds, f"p = p - lr * u{NUM_ROUNDS}"]
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


def test_a_generated_name_gets_the_first_number_that_is_free() -> None:
    """The rule uses the names that optgen gives to summands and to a scalar's copy, up to 119."""
    suffixes = ("", *(f"_{number}" for number in range(2, 120)))
    body = [
        "total = 0.0 * lr",
        *(f"s_value{suffix} = exp(lr - {i})" for i, suffix in enumerate(suffixes, 1)),
        *(f"eta_before{suffix} = exp(lr - {i})" for i, suffix in enumerate(suffixes, 1)),
        *(f"total = total + s_value{suffix} + eta_before{suffix}" for suffix in suffixes),
        "s = sum(g * p)",
        "p = p - eta * s * total * g",
        "eta = 2 * eta + lr",
    ]
    eta = "eta=state('eta', init=1.0, shape='scalar')"
    head = f"@optimizer()\ndef Numbered(p, g, /, {eta}, *, lr=hyper(0.1)):"
    text = "\n    ".join([f'from optgen.spec import *\n\n{head}\n    """Made up."""', *body, ""])
    (algorithm,) = read_spec(Spec("Numbered", text.rstrip(" "), "numbered.py", 1))

    cpp = emit.render(algorithm, FUSED_CPU, None)

    assert "s_value_120 = " in cpp
    assert "eta_before_120 = " in cpp


def test_more_than_a_thousand_lines_that_nothing_reads_are_dropped() -> None:
    """Each line is dead only after the next one is dropped."""
    body = ["x = g", *["x = -x"] * 1200, "p = p - lr * g"]
    head = "@optimizer()\ndef Dead(p, g, /, *, lr=hyper(0.1)):"
    text = "\n    ".join([f'from optgen.spec import *\n\n{head}\n    """Made up."""', *body, ""])
    (algorithm,) = read_spec(Spec("Dead", text.rstrip(" "), "dead.py", 1))
    (plan,) = plans(algorithm)
    names = [assign.target.name for assign in assigns(plan.sweeps[0].body)]
    assert names == ["grad", "param"]  # `maximize` negates the gradient
