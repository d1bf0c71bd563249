"""Run the tests of offloaded optimizers on the simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import device
import pytest


@pytest.fixture
def sim() -> Iterator[Any]:
    """Return the simulated device; take settings and failures back after the test."""
    device.load()
    device.reset()
    yield device
    device.reset()
