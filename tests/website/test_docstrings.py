"""Test the conversion of docstrings to Markdown."""

from __future__ import annotations

from website.docstrings import parse, table_cell

DOC = r"""Decay the rate by :math:`\gamma` for *args.

    .. math::
        \eta_t = \eta_0 \, \gamma^t

    Text below.

    Args:
        gamma (float or None): Factor :math:`\gamma`, which is
            long. Default: 0.1.
        ge, lt: bounds. Default: None.
        f (Callable[[int], float]): A function.

    Raises:
        ValueError: A number is
            out of bounds.

    Paper: https://example.org
    """


def test_formulas_stand_in_the_text() -> None:
    docstring = parse(DOC)

    assert docstring.text.startswith("Decay the rate by \\(\\gamma\\) for \\*args.")
    assert docstring.text.endswith("Text below.")
    assert docstring.formulas == (r"\eta_t = \eta_0 \, \gamma^t",)
    assert f"\\[\n{docstring.formulas[0]}\n\\]" in docstring.text
    assert docstring.sections["Paper"] == "https://example.org"


def test_an_item_has_name_type_and_text() -> None:
    gamma, bounds, function = parse(DOC).items("Args")

    assert (gamma.name, gamma.type) == ("gamma", "float or None")
    assert gamma.text == "Factor \\(\\gamma\\), which is long. Default: 0.1."
    assert (bounds.name, bounds.type) == ("ge, lt", "")
    assert (function.name, function.type) == ("f", "Callable[[int], float]")
    assert [error.text for error in parse(DOC).items("Raises")] == ["A number is out of bounds."]
    assert parse(None).items("Args") == []


def test_a_cell_has_no_bar() -> None:
    assert table_cell("a | b\nc") == r"a \| b c"
