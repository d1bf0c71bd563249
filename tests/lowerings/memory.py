"""Measure a step's memory traffic from torch's operations, and its peak from the allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WRITE_ONLY = ("copy_", "fill_", "zero_")


class Traffic(TorchDispatchMode):
    """Counts `_foreach_` calls, and what all operations read and write, in words of four bytes.

    An operand that is passed twice is read once. Tensors with one number, such as step counts, do
    not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.read = 0.0
        self.written = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = tensors((args, kwargs))
        if func.is_view or not inputs:
            return result
        first = tensors(args[0]) if args else {}
        changed = first if func._schema.is_mutable else {}
        outputs = {k: t for k, t in tensors(result).items() if k not in inputs}
        name = func._schema.name
        self.calls += "_foreach_" in name
        unread = changed if name.endswith(WRITE_ONLY) else {}
        sizes = {key: words(tensor) for key, tensor in (inputs | outputs).items()}
        masked = any(tensor.dtype is torch.bool for tensor in inputs.values())
        # Of an indexed table, only the rows that are read or written count.
        if name.startswith("aten::index") and not masked:
            selected = next(iter(outputs), id(args[-1]))
            sizes |= {key: sizes.get(selected, 0) for key in first}
        if rows := [words(tensor) for tensor in inputs.values() if tensor.is_sparse]:
            sizes |= {key: min(size, max(rows)) for key, size in sizes.items()}
        self.read += sum(sizes[key] for key in inputs if key not in unread)
        self.written += sum(sizes[key] for key in (*changed, *outputs))
        return result


def words(tensor: Tensor) -> float:
    """Return a tensor's size in words of four bytes; a sparse tensor counts indices and values."""
    parts = (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
    return sum(part.numel() * part.itemsize for part in parts) / 4


def peak(function: Callable[[], Any]) -> int:
    """Return the peak of a call's allocated bytes, those of kernels included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [event for event in events if event.name() == "[memory]"]
    alive = largest = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        alive += change.nbytes()
        largest = max(largest, alive)
    return largest


def tensors(values: Any) -> dict[int, Tensor]:
    """Return the tensors in nested arguments, each once, without those that hold one number."""
    found = (v for v in tree_leaves(values) if isinstance(v, Tensor))
    return {id(tensor): tensor for tensor in found if tensor.numel() != 1}
