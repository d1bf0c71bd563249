"""Measure the memory traffic of torch operations, and the peak of allocated memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WRITE_ONLY_OPS = ("copy_", "fill_", "zero_")


class Traffic(TorchDispatchMode):
    """Counts `_foreach_` calls, and the 4-byte numbers that all operations read and write.

    An operand that is passed twice is read once. Tensors of one element, such as step counts,
    are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.foreach_calls = 0
        self.numbers_read = 0.0
        self.numbers_written = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = tensors((args, kwargs))
        if func.is_view or not inputs:
            return result
        first_argument = tensors(args[0]) if args else {}
        written_in_place = first_argument if func._schema.is_mutable else {}
        outputs = {k: t for k, t in tensors(result).items() if k not in inputs}
        name = func._schema.name
        self.foreach_calls += "_foreach_" in name
        not_read = written_in_place if name.endswith(WRITE_ONLY_OPS) else {}
        sizes = {key: float32_count(tensor) for key, tensor in (inputs | outputs).items()}
        has_mask = any(tensor.dtype is torch.bool for tensor in inputs.values())
        # An operation with indices reads or writes only the selected rows.
        if name.startswith("aten::index") and not has_mask:
            key_of_selected = next(iter(outputs), id(args[-1]))
            sizes |= {key: sizes.get(key_of_selected, 0) for key in first_argument}
        sparse_sizes = [float32_count(tensor) for tensor in inputs.values() if tensor.is_sparse]
        if sparse_sizes:
            sizes |= {key: min(size, max(sparse_sizes)) for key, size in sizes.items()}
        self.numbers_read += sum(sizes[key] for key in inputs if key not in not_read)
        self.numbers_written += sum(sizes[key] for key in (*written_in_place, *outputs))
        return result


def float32_count(tensor: Tensor) -> float:
    """Return a tensor's bytes divided by four. A sparse tensor has indices and values."""
    parts = (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
    return sum(part.numel() * part.itemsize for part in parts) / 4


def peak_bytes(function: Callable[[], Any]) -> int:
    """Return the largest number of bytes that a call allocates at once, also in kernels."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [event for event in events if event.name() == "[memory]"]
    allocated = largest = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        allocated += change.nbytes()
        largest = max(largest, allocated)
    return largest


def tensors(values: Any) -> dict[int, Tensor]:
    """Return the tensors in nested arguments by id, without tensors of one element."""
    found = (v for v in tree_leaves(values) if isinstance(v, Tensor))
    return {id(tensor): tensor for tensor in found if tensor.numel() != 1}
