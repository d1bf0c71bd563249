"""Keep states in files that are mapped into memory, for states that do not fit there.

The bytes of a file are allocated before it is mapped. So a full disk is an error, and not a SIGBUS
in a kernel. A file has no name: nobody else opens it, and its bytes are free again when the process
ends, in whatever way, or when the last of its states is let go.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from mmap import mmap
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryFile

import torch
from torch import Tensor

from optgen.offloading.buckets import ALIGNMENT, HostParam
from optgen.offloading.worker import OffloadError
from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.torch_private import local_tensor


def check_folder(folder: Path) -> None:
    """Raise a ValueError for a folder in which no file can be made."""
    if not hasattr(os, "posix_fallocate"):
        raise ValueError("state_dir= needs posix_fallocate, which this system does not have")
    if not folder.is_dir():
        raise ValueError(f"state_dir={str(folder)!r} is not a folder: make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"this process cannot write into state_dir={str(folder)!r}")


def padded(count: int) -> int:
    """Return the bytes that a state of so many bytes takes in a file."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class StateFiles:
    """The files of an optimizer's states.

    Args:
        folder: The files are on its disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rest = memoryview(b"")  # what no state has yet

    def reserve(self, size: int) -> None:
        """Allocate bytes for the states that are made next, in one file.

        Raises:
            OffloadError: The disk has no room for them, or no file can be made.
        """
        if not size:
            return
        free = disk_usage(self._folder).free
        if size > free:  # to try would fill the disk for a moment
            raise self._refusal(size, free, "the disk has less room")
        try:
            with TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                self._rest = memoryview(mmap(file.fileno(), size))
        except OSError as error:
            raise self._refusal(size, free, os.strerror(error.errno or 0)) from error

    def _refusal(self, size: int, free: int, reason: str) -> OffloadError:
        return OffloadError(
            f"the states need {size:,} bytes in state_dir={str(self._folder)!r}, where {free:,} "
            f"are free: {reason}. Choose a folder on another disk, or smaller states: compose the "
            'rule with modifiers.state_dtype("bfloat16") or modifiers.quantized()'
        )

    @torch.no_grad()
    def move(self, owner: HostParam, keys: Iterable[str]) -> None:
        """Move some of a parameter's states into the file, except numbers."""
        for key in keys:
            values = owner.states if key in owner.states else owner.unmade
            value = values.get(key)
            if value is not None and value.dim():
                values.update({key: self._moved(value)})  # an assignment would write into it

    def _moved(self, state: Tensor) -> Tensor:
        if (codes := getattr(state, "_memory", None)) is not None:  # of a quantized state
            moved: Tensor = state._with_memory(self._copied(codes))  # type: ignore[attr-defined]
            return moved
        if not is_dtensor(type(state)):
            return self._copied(state)
        local = local_tensor(state)
        local.set_(self._copied(local))  # type: ignore[call-overload]
        return state

    def _copied(self, tensor: Tensor) -> Tensor:
        """Return a copy of a contiguous tensor in the next bytes of the file."""
        end = padded(tensor.nbytes)
        memory, self._rest = self._rest[: tensor.nbytes], self._rest[end:]
        copy = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
        return copy.copy_(tensor)
