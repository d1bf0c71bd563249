"""Register faults of torch that docs/differences.md lists, each with a check that shows the fault.

Our classes must pass. Torch's class is a strict expected failure before the version that mends the
fault: when torch mends it, the test fails and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import optgen.optim

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
Check = Callable[[Any], None]
Version = tuple[int, int]

expected_of_torch = pytest.mark.xfail(
    strict=True, reason="torch's fault: if it is mended, say in which version"
)


@dataclass(frozen=True)
class Fault:
    """A class, the page's text, a check that fails, and the torch version that mends the fault."""

    name: str
    text: str
    check: Check
    mended: Version | None

    @property
    def installed(self) -> bool:
        """Tell whether the installed torch has the fault."""
        return self.mended is None or torch.__version__ < self.mended


class Faults(dict[str, Fault]):
    """Holds faults by class and text."""

    def __call__(self, name: str, mended: Version | None = None) -> Callable[[Check], Check]:
        """Register a fault of a class under the function's docstring, which the page quotes."""

        def register(check: Check) -> Check:
            text = (check.__doc__ or "").rstrip(".")
            self[f"{name}: {text}"] = Fault(name, text, check, mended)
            return check

        return register

    def tests(self, classes: Collection[str] = ()) -> tuple[Callable[..., None], ...]:
        """Return a module's tests: our classes lack the faults, torch's have them, and the page
        says so.

        If classes are given, test only their faults: this torch may lack other classes.
        """
        keys = [key for key, fault in self.items() if not classes or fault.name in classes]
        torchs = [
            pytest.param(key, marks=expected_of_torch if self[key].installed else ())
            for key in keys
        ]

        @pytest.mark.parametrize("key", keys)
        def test_ours_is_right(key: str) -> None:
            self[key].check(optgen.optim)

        @pytest.mark.parametrize("key", torchs)
        def test_torchs_is_right(key: str) -> None:
            self[key].check(torch.optim)

        @pytest.mark.parametrize("key", self)
        def test_the_page_lists_the_fault(key: str) -> None:
            assert _is_listed(self[key])

        return test_ours_is_right, test_torchs_is_right, test_the_page_lists_the_fault


def _is_listed(fault: Fault) -> bool:
    """Tell whether one row of the page has the text, the class, and the version that mends the
    fault.
    """
    text = fault.text
    if fault.mended:
        text += f" (mended in torch {fault.mended[0]}.{fault.mended[1]})"
    rows = [row.split(" | ") for row in PAGE.read_text(encoding="utf-8").splitlines()]
    classes = [row[0] for row in rows if len(row) == 3 and row[1] == text]
    return [f"`{fault.name}`" in listed for listed in classes] == [True]
