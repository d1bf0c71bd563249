"""Test rules on whole matrices on shards: each parameter steps whole, on one of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from distributed import pair
from distributed.cases import difference, share
from torch import Tensor, distributed, nn

import optgen
from optgen import explain
from optgen.runtime.eager import owner_step

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

SPECS = Path(__file__).parent.parent / "specs"
SHAPES: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((8, 4), 0),
    ((8, 4), 0),
    ((5, 3), 0),
    ((1, 6), 0),
    ((3, 5), 1),
    ((2, 5, 3), 0),
    ((3, 5, 4), 1),
    ((7,), 0),
    ((3, 4), None),
    ((), None),
    ((8, 4), 0),
    ((4, 6), 0),
)
