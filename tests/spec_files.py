"""Find spec files of the catalogue and of tests/specs by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optgen
from optgen.optim._published import PUBLISHED, published

CATALOGUE = Path(__file__).parents[1] / "specs"
TEST_SPECS = Path(__file__).parent / "specs"
TORCH = [p for p in sorted(CATALOGUE.glob("[!_]*.py")) if p.stem not in PUBLISHED]
"""Specs of torch's classes, of torchrec's, and of functions. Tests of passes go through them."""

REPRESENTATIVES = (
    *("adahessian", "adam_h", "adam_mini", "came", "dadapt_adam", "kahan_adamw", "lamb", "lars"),
    *("muon_h", "normuon", "prodigy", "schedule_free_adamw", "schedule_free_sgd", "sophia"),
)
"""Published rules that tests of passes and of lowerings go through, beside torch's."""


def spec_file(name: str) -> Path:
    """Return the file of a spec of tests/specs, or of the catalogue."""
    found = TEST_SPECS / f"{name}.py"
    return found if found.exists() else CATALOGUE / f"{name}.py"


def loaded(spec: str) -> Any:
    """Return the checked-in class of a published optimizer, or the class of a loaded spec file.

    Representatives are loaded from their files here, too, so that all tests share their kernels.
    """
    checked_in = spec in PUBLISHED and spec not in REPRESENTATIVES
    return published(spec) if checked_in else optgen.load(spec_file(spec))
