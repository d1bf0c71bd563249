"""Run steps as in a graph capture, but on the CPU: the host may not read a tensor's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class HostReadsForbidden(TorchDispatchMode):
    """Raises an error if the host reads a number of a tensor, which no graph can record."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError("the host read a number of a tensor")
        return func(*args, **kwargs or {})


@contextmanager
def captured(forbid_reads: bool = True) -> Iterator[None]:
    """Let capturable steps take CPU tensors. With `forbid_reads`, a host read is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "optgen.runtime.eager.differentiable_capturable_checks.capturable_devices",
            lambda: ["cpu", "cuda"],
        )
        with HostReadsForbidden() if forbid_reads else nullcontext():
            yield
