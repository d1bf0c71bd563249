"""Test branches in a captured step: equal results, and the host reads no tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowerings.capture import capture_on_cpu
from lowerings.rules import RULES, spec_text

import optgen
from optgen import use_lowering
from optgen.spec import Spec

BRANCHES = {
    "a branch on a number inside a branch on a flag": """
        if flag_a:
            if t > 2:
                p = p - lr * g
            else:
                p = p - 2 * lr * g
        else:
            p = p - 3 * lr * g
    """,
    "a branch on a flag inside a branch on a number": """
        if t > 2:
            if flag_a:
                m = beta * m + g
            else:
                m = g
            p = p - lr * m
        else:
            p = p - lr * g
    """,
    "flags and numbers in one condition": """
        if flag_a and t > 2 or flag_b and not t < 4:
            m = beta * m + g
        elif not flag_b:
            m = g
        p = p - lr * m
    """,
    "a condition on numbers only": """
        if t > 1 and not (t == 3 or t > 5):
            m = beta * m + g
        p = p - lr * m
    """,
    "an elif": """
        x = c
        if t > 4:
            x = c * 2
            p = p - lr * p
        elif t > 2:
            y = t * 3
            x = y
        p = p - lr * x * g
    """,
    "a branch on a number inside another": """
        if t > 2:
            if t > 4:
                x = c
                m = m + x * g
            else:
                x = c * t
            p = p - lr * x * m
        else:
            if t > 1:
                m = g
            p = p - lr * g
    """,
    "a branch that changes its condition": """
        x = t
        y = t
        if x > 3:
            x = 1
            y = c
        p = p - lr * x * y * g
    """,
    "a branch that changes the state in its condition": """
        y = t
        if s > 3:
            s = 1
            y = c
        else:
            s = s + y
        p = p - lr * s * y * g
    """,
    "a condition with a name": """
        m = g + m
        late = t > 2 and beta > 0.1
        if late:
            p = p - lr * m
        if flag_a and not late:
            p = p + lr * g
    """,
    "a state of one number": """
        if t > 2:
            s = s * beta + 1
        else:
            s = s + t
        r = s
        if s > 3:
            r = s * 2
        p = p - lr * r * g
    """,
    "a condition on elements and numbers": """
        late = t > 2
        m = where(g > 0 and m < c or late, g, m)
        p = p - lr * m
    """,
    "a local name of each arm": """
        x = 2 * g
        if t > 2:
            y = g + m
            m = y * y
        else:
            y = g - m
            m = y + x
        y = m + c
        p = p - lr * y
    """,
}
FLAG_VALUES = [{"flag_a": a, "flag_b": b} for a in (False, True) for b in (False, True)]


def values_after_training(cls: Any, lowering: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the values of parameters and states after seven steps."""
    generator = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter(torch.rand(n, dtype=torch.float64, generator=generator) + 1)
        for n in (5, 3)
    ]
    optimizer = cls(params, **options)
    optimizer.init_state()
    for state in (v for p in params for v in optimizer.state[p].values() if v.dim()):
        state.copy_(torch.rand(state.shape, dtype=state.dtype, generator=generator))
    for step in range(7):
        for index, param in enumerate(params):
            grad = torch.randn(param.shape, dtype=torch.float64, generator=generator)
            param.grad = None if step + index == 2 else grad  # step counts differ from here on
        with use_lowering(lowering):
            if options.get("capturable"):
                with capture_on_cpu():
                    optimizer.step()
            else:
                optimizer.step()
    return [
        *(p.detach() for p in params),
        *(v for p in params for v in optimizer.state[p].values()),
    ]


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("name", [*BRANCHES, *RULES])
def test_a_captured_step_equals_a_plain_step(name: str, lowering: str) -> None:
    text = spec_text({**RULES, **BRANCHES}[name])
    cls = optgen.load(Spec("Small", text, "<small>", 1))
    defaults = cls([torch.nn.Parameter(torch.ones(1))]).defaults
    flag_sets = {tuple((k, v) for k, v in flags.items() if k in defaults) for flags in FLAG_VALUES}
    for options in map(dict, sorted(flag_sets)):
        plain = values_after_training(cls, "forloop", options)
        found = values_after_training(cls, lowering, {**options, "capturable": True})
        for value, expected in zip(found, plain, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
