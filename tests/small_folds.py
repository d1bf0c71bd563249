"""Let small tensors have folds, which otherwise only tensors of 33 million elements have."""

from __future__ import annotations

from typing import Any
from unittest import mock

from optgen.runtime.fused_triton import folds

CHUNK = 4


def small_folds(chunk: int = CHUNK) -> Any:
    """Return a context in which so many partial sums are a chunk, and one more are folded."""
    return mock.patch.multiple(folds, FOLD=chunk, WORTH_A_LAUNCH=0)
