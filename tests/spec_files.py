"""Find spec files of the catalogue and of tests/specs by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optgen
from optgen.optim._published import PUBLISHED, published_class

CATALOGUE = Path(__file__).parents[1] / "specs"
TEST_SPECS = Path(__file__).parent / "specs"
TORCH_SPECS = [p for p in sorted(CATALOGUE.glob("[!_]*.py")) if p.stem not in PUBLISHED]
"""Specs of torch's classes, of torchrec's, and of functions; tests of passes run on all of them."""

REPRESENTATIVES = (
    *("adahessian", "adam_h", "adam_mini", "came", "dadapt_adam", "kahan_adamw", "lamb", "lars"),
    *("madgrad", "muon_h", "normuon", "novograd", "prodigy", "schedule_free_adamw"),
    *("schedule_free_sgd", "sm3", "sophia"),
)
"""Published rules on which tests of passes and of lowerings run, beside TORCH_SPECS."""


def spec_file(name: str) -> Path:
    """Return the file of a spec of tests/specs, or of the catalogue."""
    found = TEST_SPECS / f"{name}.py"
    return found if found.exists() else CATALOGUE / f"{name}.py"


def optimizer_class(name: str) -> Any:
    """Return the checked-in class of a published optimizer, or the class of a spec file.

    The classes of REPRESENTATIVES come from spec files, so that all tests share their kernels.
    """
    is_checked_in = name in PUBLISHED and name not in REPRESENTATIVES
    return published_class(name) if is_checked_in else optgen.load(spec_file(name))
