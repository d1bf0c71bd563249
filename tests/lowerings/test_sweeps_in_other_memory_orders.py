"""Test sweeps between matrix words on parameters whose memory is not row-major."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optgen
from optgen.spec import Spec

HEAD = "from optgen.spec import *\n\n@optimizer()\ndef Odd("
L = 'L=state("L", shape=("rows", "rows"), dtype="at_least_float32"'
STATES = f'p, g, /, m=state("m"), {L}, when="factored"), *, lr=hyper(0.1)):'
RULES = {
    "a state that is read again": f'''{HEAD}{STATES}
    """."""
    m = 0.9 * m + g
    if factored(p):
        L = L + m @ transpose(m)
        m = m + 0.1 * row_sum(m)
    p = p - lr * m
''',
    "sums of rows": f'''{HEAD}{STATES}
    """."""
    m = 0.9 * m + g
    if factored(p):
        L = 0.9 * L + m @ transpose(m)
        p = p - lr * m / (sqrt(row_mean(m * m)) + 0.1)
    else:
        p = p - lr * m
''',
    "a number of each matrix beside a dead list": f'''{HEAD}p, g, /, {L}), *, lr=hyper(0.1)):
    """."""
    require(ndim(p) >= 2, "matrices")
    s = trace(L)
    L = 0.8 * L + 0.1 * p @ transpose(p)
    u = L @ p * 0.3
    u = u / (1 + s) + 0.01 * g
    p = p - lr * L @ u
''',
}


def after_steps(cls: type[torch.optim.Optimizer], lowering: str) -> list[torch.Tensor]:
    """Return parameters of three memory orders, and their states, after three steps."""
    generator = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(torch.randn(6, 10, generator=generator)),
        nn.Parameter(
            torch.randn(2, 3, 5, 7, generator=generator).to(memory_format=torch.channels_last)
        ),
        nn.Parameter(torch.randn(7, 5, generator=generator).t()),
    ]
    optimizer = cls(params, lr=0.01)  # type: ignore[call-arg]
    with optgen.use_lowering(lowering):
        for _ in range(3):  # the later steps repeat calls that an earlier order made
            for param in params:
                noise = torch.randn(param.shape, generator=generator)
                param.grad = torch.empty_like(param).copy_(noise)
            optimizer.step()
    states = [value for param in params for value in optimizer.state[param].values()]
    return [*(param.detach() for param in params), *states]


@pytest.mark.parametrize("rule", RULES)
def test_fused_steps_are_those_of_the_for_loop(rule: str) -> None:
    cls = optgen.load(Spec("Odd", RULES[rule], "odd.py", 1))
    expected = after_steps(cls, "forloop")
    for found, right in zip(after_steps(cls, "fused_cpu"), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
