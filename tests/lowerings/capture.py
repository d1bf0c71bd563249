"""Simulate a graph capture on the CPU: the host may not read a tensor's value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class HostReadsForbidden(TorchDispatchMode):
    """Raises an error if the host reads a tensor's value, which a graph cannot record."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError("the host read a tensor's value")
        return func(*args, **kwargs or {})


@contextmanager
def capture_on_cpu(forbid_host_reads: bool = True) -> Iterator[None]:
    """Allow capturable steps on CPU tensors. With `forbid_host_reads`, a host read raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "optgen.runtime.eager.call.capturable_devices",
            lambda: ["cpu", "cuda"],
        )
        # On the CPU, Newton-Schulz iterations read norms; on a device they do not.
        patch.setattr("optgen.runtime.newton_schulz.is_plain_memory", lambda tensor: False)
        with HostReadsForbidden() if forbid_host_reads else nullcontext():
            yield
