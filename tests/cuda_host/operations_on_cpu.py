"""Run torch's operations on CUDA tensors as operations on the CPU, queued on the current stream.

The memory of an emulated device is host memory, so a CPU tensor can share it. Results are allocated
at once, by torch's own allocator for CUDA; their shapes come from the meta device. The operation
itself runs when its stream gets there. An operation whose result the host must know waits.
Plain copies go through torch to the runtime.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from cuda_host.emulated_runtime import enqueue
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from optgen.verification.patch_attribute import patch_attribute

# Operations that only allocate, describe or copy plainly: torch runs them on the emulated device.
_RUN_BY_TORCH = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"),
        *("alias", "detach", "lift_fresh", "set_", "_reshape_alias", "_unsafe_view"),
        *("is_pinned", "pin_memory", "_pin_memory", "record_stream", "_local_scalar_dense"),
        *("indices", "values", "_indices", "_values", "_nnz", "is_coalesced", "_coalesced_"),
        *("sparse_dim", "dense_dim", "_dimI", "_dimV", "is_same_size"),
        *("_sparse_coo_tensor_with_dims_and_tensors", "_validate_sparse_coo_tensor_args"),
    }
)


class OperationsOnCpu(TorchDispatchMode):
    """While active, operations on CUDA tensors run on the CPU.

    `before_allocation` is called before an allocation for a result; it may raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before_allocation: Callable[[], None] = lambda: None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, on the CPU if a CUDA tensor is involved."""
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        device = _device_of(args, kwargs)
        if device is None or func.is_view:
            return func(*args, **kwargs)
        if name in _RUN_BY_TORCH:
            if name.startswith(("empty", "new_empty")):
                self.before_allocation()
            return func(*args, **kwargs)
        if name == "copy_":
            return _copy(*args, **kwargs)
        if name == "_to_copy":
            self.before_allocation()
            return _to_copy(*args, **kwargs)
        if name == "_foreach_copy_" and _is_of_several_devices(args):
            for target, source in zip(args[0], args[1], strict=True):
                _copy(target, source, *args[2:], **kwargs)
            return None
        if name.startswith("_foreach_") and _is_of_several_devices(args):
            with self:
                return _one_by_one(func, args, kwargs)
        if func._schema.is_mutable:
            return _queue_in_place(func, args, kwargs, device)
        self.before_allocation()
        return _queue(func, args, kwargs, device)


@contextmanager
def printable_tensors() -> Iterator[None]:
    """Let tensors be printed, from copies on the CPU: torch prints without any mode."""
    original = Tensor.__repr__

    def show(self: Tensor, **options: Any) -> str:
        text: str = original(self.detach().cpu() if self.is_cuda else self, **options)
        return text

    with patch_attribute(Tensor, "__repr__", show):
        yield


def _device_of(args: Any, kwargs: dict[str, Any]) -> torch.device | None:
    """Return the CUDA device that an operation involves."""
    flat, _ = tree_flatten((args, kwargs))
    for each in flat:
        if isinstance(each, Tensor) and each.is_cuda:
            return each.device
    if kwargs.get("device") is None or torch.device(kwargs["device"]).type != "cuda":
        return None
    device = torch.device(kwargs["device"])
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _is_of_several_devices(args: Any) -> bool:
    """Tell whether the lists among the arguments hold tensors of several devices."""
    lists = [each for each in args if isinstance(each, (list, tuple))]
    flat, _ = tree_flatten(lists)
    return len({each.device for each in flat if isinstance(each, Tensor)}) > 1


def _one_by_one(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on lists tensor by tensor, as torch does for tensors of several devices."""
    results: list[Tensor] = []
    for index in range(len(args[0])):
        single = [[each[index]] if isinstance(each, (list, tuple)) else each for each in args]
        results += func(*single, **kwargs) or []
    return results or None


def _run_later(device: torch.device, title: str, call: Callable[[], None]) -> None:
    """Queue a call on the device's current stream."""

    def run() -> None:
        with _disable_current_modes(), torch.no_grad():
            call()

    with torch.cuda.device(device):
        is_captured = torch.cuda.is_current_stream_capturing()
        enqueue(torch.cuda.current_stream().cuda_stream, title, run, is_captured)


def _queue_in_place(func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    """Queue an operation that writes into its arguments; return those that it returns."""
    host_args, host_kwargs = tree_map(_on_host, (args, kwargs))
    _run_later(device, str(func), lambda: func(*host_args, **host_kwargs))
    schema = func._schema
    if not schema.returns:
        return None
    given = [*args, *(kwargs.get(each.name) for each in schema.arguments[len(args) :])]
    written = [value for each, value in zip(schema.arguments, given, strict=True) if each.is_write]
    return written[0] if len(schema.returns) == 1 else tuple(written)


def _queue(func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    """Allocate the results of an operation, and queue it; wait if the host must know them."""
    host_args, host_kwargs = tree_map(_on_host, (args, kwargs))
    try:
        described = func(*tree_map(_described, args), **tree_map(_described, kwargs))
    except (NotImplementedError, RuntimeError):
        described = None  # its shape depends on numbers, or there is no description
    flat, structure = tree_flatten(described)
    if described is None or not all(isinstance(each, Tensor) for each in flat):
        torch.cuda.current_stream(device).synchronize()
        with torch.no_grad():
            return tree_map(lambda each: _on_device(each, device), func(*host_args, **host_kwargs))
    results = [
        torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=device)
        for each in flat
    ]
    shared = list(map(_shared, results))

    def run() -> None:
        computed, _ = tree_flatten(func(*host_args, **host_kwargs))
        for target, source in zip(shared, computed, strict=True):
            target.copy_(source)

    _run_later(device, str(func), run)
    return structure.unflatten(results)


def _shared(tensor: Tensor) -> Tensor:
    """Return a CPU tensor in the memory of a CUDA tensor, which it does not keep alive."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    storage = tensor.untyped_storage()
    memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    whole = torch.empty(0, dtype=tensor.dtype)
    return whole.set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())


def _on_host(each: Any) -> Any:
    """Replace CUDA tensors by CPU tensors in their memory, and numbers on the host by copies."""
    if isinstance(each, Tensor):
        if each.is_sparse:
            indices, values = _on_host(each._indices()), _on_host(each._values())
            return torch.sparse_coo_tensor(
                indices,
                values,
                each.shape,
                is_coalesced=each.is_coalesced(),
                check_invariants=False,
            )
        return _shared(each) if each.is_cuda else each.clone()
    if isinstance(each, torch.device) and each.type == "cuda":
        return torch.device("cpu")
    return each


def _described(each: Any) -> Any:
    """Replace tensors and devices by those of the meta device."""
    if isinstance(each, Tensor):
        if each.is_sparse:
            raise NotImplementedError
        return torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
    if isinstance(each, torch.device):
        return torch.device("meta")
    return each


def _on_device(each: Any, device: torch.device) -> Any:
    """Return a result that the CPU has computed, on the device."""
    if not isinstance(each, Tensor):
        return each
    return _with_parts(each, Tensor.to, device) if each.is_sparse else each.to(device)


def _with_parts(sparse: Tensor, change: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return a sparse tensor whose indices and values are changed."""
    return torch.sparse_coo_tensor(
        change(sparse._indices(), *arguments),
        change(sparse._values(), *arguments),
        sparse.shape,
        is_coalesced=sparse.is_coalesced(),
        check_invariants=False,
    )


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy as torch does: plain memory by the runtime, anything else by an operation first."""
    is_plain = (
        target.dtype == source.dtype
        and target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
    )
    if is_plain:
        return target.copy_(source, non_blocking)
    if target.is_cuda and source.is_cuda:
        if source.device != target.device:
            source = source.to(target.device)
        _queue_in_place(torch.ops.aten.copy_.default, (target, source), {}, target.device)
    elif target.is_cuda:  # converted on the host, then copied
        plain = source.to(target.dtype).expand(target.shape).contiguous()
        _copy(target, plain.to(target.device), non_blocking)
    else:  # converted on the device, then copied
        plain = torch.empty(target.shape, dtype=target.dtype, device=source.device)
        _queue_in_place(torch.ops.aten.copy_.default, (plain, source), {}, source.device)
        target.copy_(plain.cpu())
    return target


def _to_copy(source: Tensor, *, non_blocking: bool = False, **options: Any) -> Tensor:
    """Copy into a new tensor of another dtype or on another device."""
    memory_format = options.pop("memory_format", None) or torch.preserve_format
    chosen = {key: value for key, value in options.items() if value is not None}
    if source.is_sparse:
        return torch.ops.aten._to_copy.default(source, non_blocking=non_blocking, **options)
    target = torch.empty_like(source, memory_format=memory_format, **chosen)
    return _copy(target, source, non_blocking)
