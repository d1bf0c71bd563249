"""Schedules of the simulated device: how long copies and operations take, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any


def drawn(seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return settings of the device, and options of `offload`."""
    rng = random.Random(seed)
    settings = {
        "compute": rng.choice([0, 0.0005]),
        "latency": rng.choice([0, 0.0002, 0.001]),
        "jitter": rng.choice([0.0005, 0.002]),
        "to_host": rng.choice([0, 5e5]),
        "to_device": rng.choice([0, 5e5]),
        "seed": seed,
    }
    return settings, {"slots": rng.choice([1, 2, 4]), "bucket_bytes": rng.choice([2048, 8192])}
