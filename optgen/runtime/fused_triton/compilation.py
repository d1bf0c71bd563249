"""Compile and load the kernels of an update before any of them is launched.

Triton compiles a kernel when it is first launched. By then, kernels before it may have changed
tensors. So the update of new buckets runs once without launches. What can fail then: no C compiler
for Triton's own parts, a device that Triton's compilers do not know, a folder that cannot be
written, too little memory for what the update keeps on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.step_context import Refusal
from optgen.runtime.fused_triton.bucket import Arguments, Bucket, launch_context, triton_type
from optgen.runtime.sharded.driver import Update


def compile_kernels(
    update: Callable[[Any], Update | None], bucket: Bucket, groups: Sequence[Mapping[str, Any]]
) -> None:
    """Compile and load the kernels that an update of a bucket launches; launch none.

    `groups` holds the group of each subset of the bucket.

    Raises:
        Refusal: Triton cannot do so.
    """
    with launch_context(bucket.key.device):
        launches = update(_Rehearsal(bucket, groups))
        if launches is not None:
            _answer_requests(launches)


def _answer_requests(launches: Update) -> None:
    """Run an update that waits for reductions; every answer is 0."""
    try:
        next(launches)
        while True:
            launches.send(torch.zeros(()))
    except StopIteration:
        pass


class _Rehearsal:
    """A bucket for an update that compiles kernels and launches none."""

    def __init__(self, bucket: Bucket, groups: Sequence[Mapping[str, Any]]) -> None:
        self._bucket, self._groups = bucket, groups
        self._local_dtypes: dict[str, torch.dtype] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    @property
    def group(self) -> Mapping[str, Any]:
        """The only param group, for a rule that reduces over parameters."""
        (group,) = self._groups
        return group

    fold, finish_programs = Bucket.fold, Bucket.finish_programs

    def allocate_local(self, name: str) -> None:
        """Note the dtype of the tensors in which a sweep stores the operands of a matrix op."""
        dtype = self._bucket.key.dtypes[0]
        assert dtype is not None
        self._local_dtypes[name] = dtype

    def call(
        self, op: Callable[..., list[Tensor]], source: str, target: str, arguments: Arguments
    ) -> None:
        """Note the dtype of a matrix op's results, from a matrix of one zero."""
        dtype = self._local_dtypes[source]
        zero = torch.zeros(1, 1, dtype=dtype, device=self._bucket.key.device)
        (result,) = op([zero], *arguments(self._groups[0]))
        is_wider = result.dtype.itemsize > dtype.itemsize
        self._local_dtypes[target] = dtype if is_wider else result.dtype

    def local_type(self, name: str) -> Any:
        """Return the Triton type of the tensors that will be stored under this name."""
        return triton_type(self._local_dtypes[name])

    def launch(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        """Compile a kernel for these arguments, and load it."""
        try:
            compiled = kernel.warmup(*args, grid=(programs,), **options)
            _ = compiled[(programs, 1, 1)]  # this loads the kernel
        except Exception as error:  # of Triton, its compilers, the driver, the file system
            message = str(error).strip() or type(error).__name__
            raise Refusal(f"Triton cannot compile {kernel.__name__}: {message}") from error
