"""Faults of torch: functions that fail where a class has the fault that docs/differences.md tells.

Ours must pass. torch's is an expected failure, strictly, up to the version that mends it: the day
torch mends a fault, its test fails and says so.
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
    """A class, the words of the page, a function that fails, and the torch that mends it."""

    name: str
    text: str
    check: Check
    mended: Version | None

    @property
    def installed(self) -> bool:
        """Whether the installed torch has it."""
        return self.mended is None or torch.__version__ < self.mended


class Faults(dict[str, Fault]):
    """Faults by class and text."""

    def __call__(self, name: str, mended: Version | None = None) -> Callable[[Check], Check]:
        """Register a fault of a class under the function's docstring, which the page quotes."""

        def register(check: Check) -> Check:
            text = (check.__doc__ or "").rstrip(".")
            self[f"{name}: {text}"] = Fault(name, text, check, mended)
            return check

        return register

    def tests(self, classes: Collection[str] = ()) -> tuple[Callable[..., None], ...]:
        """A module's tests: ours has none of the faults, torch's has all, and the page tells.

        With classes, only of these the faults are looked for: this torch may lack others.
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
        def test_the_page_tells(key: str) -> None:
            assert _is_told(self[key])

        return test_ours_is_right, test_torchs_is_right, test_the_page_tells


def _is_told(fault: Fault) -> bool:
    """Whether one row of the page has the text, the class before it, and who mends it after it."""
    text = fault.text
    if fault.mended:
        text += f" (mended in torch {fault.mended[0]}.{fault.mended[1]})"
    rows = [row.split(" | ") for row in PAGE.read_text(encoding="utf-8").splitlines()]
    classes = [row[0] for row in rows if len(row) == 3 and row[1] == text]
    return [f"`{fault.name}`" in listed for listed in classes] == [True]
