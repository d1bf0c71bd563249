"""Test that a hyperparameter is described by a role only if it has this role in the rule."""

from __future__ import annotations

import pytest
from spec_texts import read, spec

from optgen.lowerings.optimizer import optimizer_context
from optgen.lowerings.optimizer.doc import role

M, V = 'm=state("exp_avg")', 'v=state("exp_avg_sq")'
SQUARES = "Decay rate of the running average of squared gradients"
GRADIENTS = "Decay rate of the running average of gradients"
EPS = "Added to the denominator for numerical stability"
ADEMAMIX = spec(
    "beta1, beta2, beta3 = betas",
    "m = beta1 * m + (1 - beta1) * g",
    "slow = beta3 * slow + (1 - beta3) * g",
    "v = beta2 * v + (1 - beta2) * g**2",
    "p = p - lr * (m + alpha * slow) / (sqrt(v) + eps)",
    states=f'{M}, slow=state("exp_avg_slow"), {V}',
    hypers="lr=hyper(0.1), betas=hyper((0.9, 0.999, 0.9999)), alpha=hyper(5.0), eps=hyper(1e-8)",
)


def role_of(name: str, *body: str, states: str = V, hypers: str = "") -> str:
    """Return the description of a hyperparameter with this name in a rule."""
    hypers = f"lr=hyper(0.1), {name}=hyper(0.5)" + (f", {hypers}" if hypers else "")
    algorithm = read(spec(*body, states=states, hypers=hypers))
    hyper = algorithm.hyper(name)
    assert hyper is not None
    return role(algorithm, hyper)


def test_roles_in_ademamix_are_recognized() -> None:
    algorithm = read(ADEMAMIX)
    found = {h.name: role(algorithm, h) for h in algorithm.hypers}
    assert found == {
        "lr": "",
        "betas": "Decay rates of the running averages",
        "alpha": "",
        "eps": EPS,
    }


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("v = alpha * v + (1 - alpha) * g**2", SQUARES),
        ("v = (1 - alpha) * g * g + v * alpha", SQUARES),
        ("v = lerp(v, g**2, 1 - alpha)", SQUARES),
        ("v = alpha * v + (1 - alpha) * g", GRADIENTS),
        ("v = lerp(v, abs(g), 1 - alpha)", "Decay rate of a running average"),
        ("v = lerp(v, g**2, alpha)", ""),
        ("v = alpha * v + g**2", ""),
        ("v = v + alpha * g**2", ""),
        ("v = maximum(alpha * v, g**2)", ""),
        ("v = alpha * v + (1 - lr) * g**2", ""),
        ("rate = alpha\n    v = lerp(v, g**2, 1 - rate)", SQUARES),
        ("rate = alpha * lr\n    v = lerp(v, g**2, 1 - rate)", ""),
    ],
)
def test_a_decay_rate_is_recognized(statement: str, expected: str) -> None:
    body = [*statement.split("\n    "), "p = p - lr * g / (sqrt(v) + 1)"]
    assert role_of("alpha", *body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (["p = p - lr * g / (sqrt(v) + eps)"], EPS),
        (["p = p - lr * g / sqrt(v + eps)"], EPS),
        (["d = sqrt(v) + eps", "p = p - lr * g / d"], EPS),
        (["d = sqrt(v) + eps", "d2 = 2 * d", "p = p - lr * g / d2"], EPS),
        (["d = sqrt(v) + eps", "p = p - lr * g / d + 0 * d"], ""),
        (["p = p - lr * (g + eps) / sqrt(v)"], ""),
        (["p = p - lr * g / (sqrt(v) - eps)"], ""),
        (["p = p - lr * g / maximum(sqrt(v), eps)"], ""),
        (["p = p - lr * sqrt(v + eps) / sqrt(v + eps) * g"], ""),
        (["p = p - eps * g / sqrt(v)"], ""),
    ],
)
def test_an_eps_is_recognized(body: list[str], expected: str) -> None:
    assert role_of("eps", "v = v + g**2 * lr", *body) == expected


@pytest.mark.parametrize(
    ("about", "expected"), [("", SQUARES), (', about="Weight of the past"', "Weight of the past")]
)
def test_the_authors_text_comes_before_a_role(about: str, expected: str) -> None:
    body = ("v = lerp(v, g**2, 1 - beta)", "p = p - lr * g / (sqrt(v) + 1)")
    hypers = f"lr=hyper(0.1), beta=hyper(0.5, ge=0{about})"
    text = optimizer_context(read(spec(*body, states=V, hypers=hypers)))["docstring"]

    assert f"beta (float): {expected}, at least 0; " in " ".join(text.split())
