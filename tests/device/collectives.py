"""A process group for tensors on the simulated device: gloo's collectives, through the host.

It refuses tensors on the CPU, so a test that uses it shows that nothing calls a CPU collective. A
call waits for its stream, and its result is there when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

import device

NAME = "sim_collectives"
Tensors = Any  # a tensor, or a list of tensors, or a list of lists


def new_group(ranks: Sequence[int] | None = None) -> Any:
    """Return a new group of some ranks, by default all, for tensors on the device.

    All ranks call this, also those that are not in the group.

    The default process group must have been initialized.
    """
    register()
    return distributed.new_group(ranks, backend=NAME)


def register() -> None:
    """Let process groups be made for the device, by default these."""
    device.load()
    if NAME not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(NAME, _Collectives, devices=[device.NAME])


class _Done(distributed._Work):
    """A collective that has ended."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Any = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class _Collectives(distributed.ProcessGroup):
    """The collectives that FSDP2, DTensor and checkpoints call."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        host_store = distributed.PrefixStore("host", store)
        self._host = distributed.ProcessGroupGloo(host_store, rank, size, timeout)
        self._texts = {"name": "", "desc": ""}

    def getBackendName(self) -> str:
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._texts["name"] = name

    def _set_group_desc(self, text: str) -> None:
        self._texts["desc"] = text

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._texts["name"]

    @property
    def group_desc(self) -> str:  # type: ignore[override]
        return self._texts["desc"]

    def _call(self, name: str, outputs: Tensors, inputs: Tensors, options: Sequence[Any]) -> _Done:
        """Call gloo's collective with copies, and copy its outputs back."""
        on_host = _mapped(_to_host, outputs)
        arguments = [on_host] if inputs is None else [on_host, _mapped(_to_host, inputs)]
        given = [each for each in options if each is not None]
        getattr(self._host, name)(*arguments, *given).wait()
        _copy(on_host, outputs)
        return _Done(outputs)

    def allreduce(self, tensors: Tensors, options: Any = None) -> _Done:
        return self._call("allreduce", tensors, None, [options])

    def broadcast(self, tensors: Tensors, options: Any = None) -> _Done:
        return self._call("broadcast", tensors, None, [options])

    def allgather(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> _Done:
        return self._call("allgather", outputs, inputs, [options])

    def gather(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> _Done:
        return self._call("gather", outputs, inputs, [options])

    def scatter(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> _Done:
        return self._call("scatter", outputs, inputs, [options])

    def _allgather_base(self, output: Tensor, tensor: Tensor, options: Any = None) -> _Done:
        return self._call("_allgather_base", output, tensor, [options])

    def _reduce_scatter_base(self, output: Tensor, tensor: Tensor, options: Any = None) -> _Done:
        return self._call("_reduce_scatter_base", output, tensor, [options])

    def all_gather_single(self, output: Tensor, tensor: Tensor, options: Any = None) -> _Done:
        return self._allgather_base(output, tensor, options)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, options: Any = None) -> _Done:
        return self._reduce_scatter_base(output, tensor, options)

    def barrier(self, opts: Any = None) -> _Done:
        self._host.barrier().wait()
        return _Done([])


def _to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type != device.NAME:
        raise RuntimeError(f"a collective on {tensor.device}, in a group of {device.NAME} tensors")
    return tensor.cpu()


def _mapped(function: Callable[[Tensor], Tensor], tensors: Tensors) -> Tensors:
    if isinstance(tensors, Tensor):
        return function(tensors)
    return [_mapped(function, each) for each in tensors]


def _copy(sources: Tensors, targets: Tensors) -> None:
    if isinstance(targets, Tensor):
        targets.copy_(sources)
        return
    for source, target in zip(sources, targets, strict=True):
        _copy(source, target)
