"""Launch kernels: through Triton's binder at first, then directly while the arguments stay alike.

Triton compiles a kernel anew for other types of its arguments, and for addresses that are no
multiples of 16. Its binder looks at every argument of every launch to find the compiled kernel,
which takes 20 µs. The arguments of a bucket are nearly always the objects of the last step. Then
the compiled kernel of the last launch is right, and is launched as Triton itself offers it:
`compiled[grid](*arguments)`.

An update that depends on nothing but its bucket launches the same kernels with the same arguments
each time. Such an update is recorded once, and its launches are repeated without the update.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor

from optgen.runtime.fused_triton.graph_memory import GraphMemory

_ALIGNMENT = 16
"""Triton's kernels may assume this alignment of an address that has it, in bytes."""
_LARGE_STORAGE = 2**31
"""Triton's kernels for AMD may assume that an address lies in a smaller storage, in bytes."""


class _Launch(NamedTuple):
    """The last launch of a kernel."""

    kernel: Any  # kept alive, since a launcher finds launches by the identity of the kernel
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any]
    named_args: tuple[Any, ...]  # the arguments of the kernel that are among the options
    run: Callable[..., Any]  # launches the compiled kernel


class Launcher:
    """Launches the kernels of one bucket, so on one device.

    Tensors among the arguments must keep their dtype and their memory while they are the same
    object.
    """

    def __init__(self, graph_memory: GraphMemory | None = None) -> None:
        self._graph_memory = graph_memory  # of a capture
        self._launches: dict[int, _Launch] = {}  # by the identity of the kernel
        self._record: list[_Launch | None] | None = None  # of an update that runs now
        self._recorded: list[_Launch] = []  # the last recorded update; [] if it cannot be repeated

    def __call__(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        """Launch some programs of a kernel; `options` are named arguments and compiler options."""
        if self._graph_memory is not None:
            self._graph_memory.flush()  # brings the tables that the step made after its beginning
        last = self._launches.get(id(kernel))
        if last is None or not _can_repeat(last, programs, args, options):
            self._bind(kernel, programs, args, options)
            last = self._launches.get(id(kernel))
        else:
            last.run(*args, *last.named_args)
            if self._record is not None:  # the arguments may be other objects than the last ones
                last = last._replace(args=args)
        if self._record is not None:
            self._record.append(last)

    def record(self, update: Callable[[], object]) -> None:
        """Run an update, whose launches `repeat` may repeat from now on."""
        record: list[_Launch | None] = []
        self._record = record
        try:
            update()
        finally:
            self._record, self._recorded = None, []
        launches = [each for each in record if each is not None]
        if len(launches) == len(record):
            self._recorded = launches

    def repeat(self) -> bool:
        """Launch the kernels of the last recorded update; or none, and return False."""
        recorded = self._recorded
        if not recorded or any(launch.kernel.pre_run_hooks for launch in recorded):
            return False
        for launch in recorded:
            launch.run(*launch.args, *launch.named_args)
        return True

    def _bind(
        self, kernel: Any, programs: int, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Launch a kernel through Triton's binder, and note the compiled kernel."""
        self._launches.pop(id(kernel), None)
        compiled = kernel[(programs,)](*args, **options)
        if not hasattr(type(compiled), "__getitem__") or kernel.pre_run_hooks:
            return  # interpreted, a future while Triton compiles ahead, or followed by somebody
        names = kernel.arg_names[len(args) :]
        if programs and all(name in options for name in names):
            named_args = tuple(options[name] for name in names)
            run = compiled[(programs, 1, 1)]
            self._launches[id(kernel)] = _Launch(kernel, programs, args, options, named_args, run)


def _can_repeat(
    last: _Launch, programs: int, args: tuple[Any, ...], options: dict[str, Any]
) -> bool:
    """Tell whether Triton would take the compiled kernel of the last launch, on the same grid."""
    return (
        programs == last.programs
        and options == last.options
        and len(args) == len(last.args)
        and (all(map(is_, args, last.args)) or all(map(_are_alike, args, last.args)))
        and not last.kernel.pre_run_hooks
    )


def _are_alike(new: Any, old: Any) -> bool:
    """Tell whether a kernel that was compiled for one argument takes another."""
    if new is old:
        return True
    return isinstance(new, Tensor) and isinstance(old, Tensor) and _facts(new) == _facts(old)


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    """Return what a compiled kernel may assume of a tensor."""
    is_large = tensor.untyped_storage().nbytes() >= _LARGE_STORAGE
    return tensor.dtype, tensor.device, tensor.data_ptr() % _ALIGNMENT == 0, is_large
