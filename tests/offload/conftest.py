"""Run the tests of offloaded optimizers on the simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

device_module: Any = pytest.importorskip("device").load()


@pytest.fixture
def sim() -> Iterator[Any]:
    """Return the simulated device; take all settings and errors back after the test."""
    yield device_module
    device_module.configure(
        latency=0,
        jitter=0,
        d2h=0,
        h2d=0,
        compute=0,
        fail_after=-1,
        pinned_limit=-1,
        stalled=False,
    )
    device_module.clear_error()
