"""Test hints for unknown names: misspelled, unsupported, or defined in another notebook cell."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from spec_texts import spec

from optgen.ir.ops import CALLABLE_OPS
from optgen.spec import Spec, hyper, optimizer
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.read_spec import read_spec
from optgen.spec.substitutes import UNSUPPORTED


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sqroot", "sqrt"),
        ("sqtr", "sqrt"),
        ("Sqrt", "sqrt"),
        ("maxmum", "maximum"),
        ("orthogonalise", "orthogonalize"),
        ("rowsum", "row_sum"),
        ("row_men", "row_mean"),
    ],
)
def test_the_error_for_a_misspelled_name_proposes_the_word(name: str, word: str) -> None:
    assert did_you_mean(name, CALLABLE_OPS) == f"did you mean `{word}`?"


@pytest.mark.parametrize(
    "name", ["global_sum", "row_max", "normalize", "ab", "x", "total_norm", "sum_rows", "log_det"]
)
def test_the_error_for_a_name_unlike_every_word_proposes_none(name: str) -> None:
    assert did_you_mean(name, CALLABLE_OPS, "otherwise") == "otherwise"


def error_of(expression: str, file: str = "made.py") -> SpecError:
    text = spec(f"p = p - lr * {expression}")
    with pytest.raises(SpecError) as caught:
        read_spec(Spec("made", text, file, 1))
    return caught.value


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_function_has_a_hint_of_its_own(name: str) -> None:
    assert name not in CALLABLE_OPS
    error = error_of(f"{name}(g)")
    assert error.message == f"the language has no `{name}`"
    assert error.hint == (UNSUPPORTED[name] or f"functions: {', '.join(CALLABLE_OPS)}")


@pytest.mark.parametrize(
    ("call", "proposed"),
    [
        ("maximun(g, 0)", "maximum"),
        ("maximun(g)", None),  # takes two arguments
        ("colz(p)", "cols"),
        ("colz(g)", None),  # takes only the parameter
    ],
)
def test_a_proposed_word_takes_the_same_arguments(call: str, proposed: str | None) -> None:
    hint = error_of(call).hint
    if proposed:
        assert hint == f"did you mean `{proposed}`?"
    else:
        assert "did you mean" not in hint


def names_after_cells(*cells: str) -> dict[str, Any]:
    """Run texts one after the other, as a notebook runs its cells; return the names they leave."""
    names: dict[str, Any] = {"optimizer": optimizer, "hyper": hyper, "__name__": "__main__"}
    for number, text in enumerate(cells):
        file = f"<cell {number}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), names)
    return names


HELPER = "def halve(x):\n    return x / SIX\nSIX = 6\n"
RULE = '''@optimizer()
def Mine(p, g, /, *, lr=hyper(0.1)):
    """Mine."""
    p = p - lr * {0}
'''


def test_the_error_for_a_name_of_another_cell_says_to_join_the_cells() -> None:
    with pytest.raises(SpecError) as caught:
        read_spec(names_after_cells(HELPER, RULE.format("halve(g)"))["Mine"])
    assert caught.value.hint == (
        "if `halve` is a helper of yours, put it into the same cell as the rule"
    )
    with pytest.raises(SpecError, match="unknown name `SIX`") as caught:
        read_spec(names_after_cells(HELPER, RULE.format("SIX * g"))["Mine"])
    assert caught.value.hint.endswith("or put it into the same cell")
    read_spec(names_after_cells(HELPER + RULE.format("halve(g)"))["Mine"])


def test_a_notebook_shows_the_message_alone() -> None:
    """IPython prints all frames of the reader, unless the error has `_render_traceback_()`."""
    error = error_of("nothing")
    assert error._render_traceback_() == f"SpecError: {error}".split("\n")
    assert len(error._render_traceback_()) == 4
