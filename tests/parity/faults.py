"""Register faults of torch that docs/differences.md lists, each with a check that shows the fault.

Our class must pass the check. Torch's class is a strict expected failure in versions with the
fault. When torch mends the fault, the test fails and asks for the version.
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
    strict=True, reason="a fault of torch: if this test passes, set `mended_in`"
)


@dataclass(frozen=True)
class Fault:
    """A class, the page's text, a check that fails with the fault, and the version without it."""

    name: str
    text: str
    check: Check
    mended_in: Version | None

    @property
    def is_in_installed_torch(self) -> bool:
        """Tell whether the installed torch has the fault."""
        return self.mended_in is None or torch.__version__ < self.mended_in


class Faults(dict[str, Fault]):
    """A registry of faults by class and text."""

    def __call__(self, name: str, mended_in: Version | None = None) -> Callable[[Check], Check]:
        """Register a fault of a class under the function's docstring, which the page quotes."""

        def register(check: Check) -> Check:
            text = (check.__doc__ or "").rstrip(".")
            self[f"{name}: {text}"] = Fault(name, text, check, mended_in)
            return check

        return register

    def tests(self, classes: Collection[str] = ()) -> tuple[Callable[..., None], ...]:
        """Return three tests: ours pass the checks, torch's fail, and the page lists the faults.

        With `classes`, check only faults of these: the installed torch may lack other classes.
        """
        keys = [key for key, fault in self.items() if not classes or fault.name in classes]
        torchs_keys = [
            pytest.param(key, marks=expected_of_torch if self[key].is_in_installed_torch else ())
            for key in keys
        ]

        @pytest.mark.parametrize("key", keys)
        def test_our_class_lacks_the_fault(key: str) -> None:
            self[key].check(optgen.optim)

        @pytest.mark.parametrize("key", torchs_keys)
        def test_torchs_class_lacks_the_fault(key: str) -> None:
            self[key].check(torch.optim)

        @pytest.mark.parametrize("key", self)
        def test_the_page_lists_the_fault(key: str) -> None:
            assert _is_listed(self[key])

        return (
            test_our_class_lacks_the_fault,
            test_torchs_class_lacks_the_fault,
            test_the_page_lists_the_fault,
        )


def _is_listed(fault: Fault) -> bool:
    """Tell whether exactly one row of the page has the fault's text, class and version."""
    text = fault.text
    if fault.mended_in:
        text += f" (mended in torch {fault.mended_in[0]}.{fault.mended_in[1]})"
    rows = [row.split(" | ") for row in PAGE.read_text(encoding="utf-8").splitlines()]
    classes = [row[0] for row in rows if len(row) == 3 and row[1] == text]
    return [f"`{fault.name}`" in listed for listed in classes] == [True]
