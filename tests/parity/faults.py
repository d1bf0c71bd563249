"""Faults of torch: functions that fail where a class has the fault that docs/differences.md tells.

Ours must pass; torch's is an expected failure, strictly: the day torch mends a fault, its test
fails and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch

import optgen.optim

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
Fault = Callable[[Any], None]

expected_of_torch = pytest.mark.xfail(
    strict=True, reason="torch's fault: if it is mended, take it off this list"
)


class Faults(dict[str, tuple[str, str, Fault]]):
    """By class and text: the class, the text of the page, the function."""

    def __call__(self, name: str) -> Callable[[Fault], Fault]:
        """Register a fault of a class under the function's docstring, which the page quotes."""

        def register(function: Fault) -> Fault:
            text = (function.__doc__ or "").rstrip(".")
            self[f"{name}: {text}"] = (name, text, function)
            return function

        return register

    def tests(self, classes: Collection[str] = ()) -> tuple[Callable[..., None], ...]:
        """A module's tests: ours has none of the faults, torch's has all, and the page tells.

        With classes, only of these the faults are looked for: this torch may lack others.
        """
        keys = [key for key, (name, _, _) in self.items() if not classes or name in classes]

        @pytest.mark.parametrize("key", keys)
        def test_ours_is_right(key: str) -> None:
            self[key][2](optgen.optim)

        @pytest.mark.parametrize("key", keys)
        @expected_of_torch
        def test_torchs_is_right(key: str) -> None:
            self[key][2](torch.optim)

        @pytest.mark.parametrize(("name", "text"), [entry[:2] for entry in self.values()])
        def test_the_page_tells(name: str, text: str) -> None:
            assert _is_told(name, text)

        return test_ours_is_right, test_torchs_is_right, test_the_page_tells


def _is_told(name: str, text: str) -> bool:
    """Whether one row of the page's tables has the text, and begins with the class."""
    rows = [row.split(" | ") for row in PAGE.read_text(encoding="utf-8").splitlines()]
    classes = [row[0] for row in rows if len(row) == 3 and row[1] == text]
    return [f"`{name}`" in listed for listed in classes] == [True]
