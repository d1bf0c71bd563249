"""Run steps as a graph capture sees them, on the CPU: nothing may read a tensor's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Blind(TorchDispatchMode):
    """Raises an error where a tensor's number would come to the host; no graph can hold that."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError("a number of a tensor was looked at")
        return func(*args, **kwargs or {})


@contextmanager
def captured(blind: bool = True) -> Iterator[None]:
    """Let capturable steps take CPU tensors. With `blind`, reading a number is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "optgen.runtime.eager.differentiable_capturable_checks.capturable_devices",
            lambda: ["cpu", "cuda"],
        )
        with Blind() if blind else nullcontext():
            yield
