"""Test specs with random edits: optgen generates code from each, or refuses it."""

from __future__ import annotations

import warnings

import pytest
from mutations import mutate
from spec_files import REPRESENTATIVES, TEST_SPECS, TORCH_SPECS, spec_file
from spec_texts import spec

from optgen import emit
from optgen.ir.print_ir import to_text
from optgen.spec import Spec
from optgen.spec.errors import SpecError, spec_errors
from optgen.spec.read_spec import read_spec

_PATHS = [*TORCH_SPECS, *sorted(TEST_SPECS.glob("*.py")), *map(spec_file, REPRESENTATIVES)]
TEXTS = [path.read_text() for path in _PATHS]
SEEDS = range(240)


HYPERS = "lr=hyper(0.1, ge=0), fa=flag(False)"
KEYWORDS = "maximize", "foreach", "fused", "capturable", "differentiable"
ONCE_FAILED = {
    "a condition that never holds": spec(
        *("if t > 2:", "    _ = g", "elif not (not fa or fa):", "    _ = p", "p = p - lr * g"),
        hypers=HYPERS,
    ),
    "a star with nothing behind it": spec(
        decorator=f"@optimizer(keywords={('lr', *KEYWORDS, '*')})"
    ),
    "no star": spec(decorator=f"@optimizer(keywords={('lr', *KEYWORDS)})"),
    "a star": spec(decorator='@optimizer(keywords=("lr", "*"))'),
    "a truth of an expression": spec("if not -lr:", "    p = p - g", "p = p - lr * g"),
}


@pytest.mark.parametrize("case", ONCE_FAILED)
def test_a_spec_that_once_failed_is_generated(case: str) -> None:
    generate(ONCE_FAILED[case])


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("part", range(4))
def test_an_edited_spec_is_generated_or_refused(part: int) -> None:
    """No other exception occurs, and a refusal has a place, a caret and a hint."""
    generated = 0
    for seed in SEEDS[part::4]:
        text = mutate(TEXTS[seed % len(TEXTS)], seed)
        try:
            generate(text)
            generated += 1
        except SpecError as error:
            check(error, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}, of this text:\n{text}") from error
    assert generated >= 5  # some edits leave a valid spec; otherwise this test would plan nothing


def check(error: SpecError, seed: int) -> None:
    """Check that a refusal has a place and a hint, and only printable characters."""
    text = str(error)
    assert text.startswith("made.py:"), f"seed {seed}: {text}"
    assert "\n  hint: " in text, f"seed {seed}: {text}"
    assert text.replace("\n", "").replace("\t", "").isprintable(), f"seed {seed}: {text}"


def generate(text: str) -> None:
    """Do everything that `optgen check` and `optgen show` do with a text."""
    for algorithm in read_spec(Spec("made", text, "made.py", 1)):
        with warnings.catch_warnings(), spec_errors(algorithm):
            to_text(algorithm)
            if algorithm.base is None:
                emit.render_all(algorithm, None)
