"""Test the letters of names that end in `_t` beside names that do not."""

from __future__ import annotations

import pytest
from spec_texts import read, spec

from optgen.passes.latex import Symbols, to_latex

HYPERS = "lr=hyper(0.1), alpha=hyper(5.0), beta3=hyper(0.99)"


def lines(*body: str, states: str = "") -> list[str]:
    text = to_latex(read(spec(*body, states=states, hypers=HYPERS)))
    return [line.strip(" &\\") for line in text.splitlines()[4:-1]]


def test_a_scheduled_hyperparameter_has_a_letter_with_a_time_index() -> None:
    found = lines(
        "alpha_t = minimum(alpha, alpha * t)",
        "beta3_t = minimum(beta3, t * beta3)",
        "lr_t = lr / t",
        "p = p - lr_t * alpha_t * g / (1 - beta3_t)",
    )
    assert found[0].startswith(r"alpha_t \leftarrow \min(\alpha, ")
    assert found[1].startswith(r"beta_{3,t} \leftarrow \min(\beta_3, t \beta_3)")
    assert found[2].startswith(r"gamma_t \leftarrow ")
    assert r"\alpha_t" in found[3]
    assert r"1 - \beta_{3,t}" in found[3]


@pytest.mark.parametrize("order", [("m", "m_t"), ("m_t", "m")])
def test_no_two_names_look_alike(order: tuple[str, str]) -> None:
    first, second = order
    algorithm = read(
        spec(
            f"{first} = 2 * g",
            f"{second} = 3 * g",
            "p = p - lr * alpha * beta3 * m * m_t",
            hypers=HYPERS,
        )
    )
    symbols = Symbols(algorithm)
    assert symbols.at("m", "t") != symbols.at("m_t", "t")
