"""Test that the kernels of a plan are compiled before its first launch, and none is launched.

`make test-cuda-host` compiles them for a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import pytest
import torch

import optgen.optim
from optgen.runtime.batch.gather import gather_batches
from optgen.runtime.batch.step_context import Refusal
from optgen.runtime.fused_triton.compilation import compile_kernels
from optgen.runtime.fused_triton.sort_into_buckets import StepBuckets

jit = pytest.importorskip("triton.runtime.jit")

KERNELS = {
    "AdamW": ["adam_scalars", "adam_step"],
    "LAMB": ["lamb_scalars", "lamb_step1", "lamb_finish1", "lamb_step2"],
    "Muon": ["muon_scalars", "muon_step1", "muon_step2"],
    "Prodigy": [
        *("prodigy_scalars", "prodigy_step1", "prodigy_finish1", "prodigy_finish2"),
        *("prodigy_finish3", "prodigy_finish4", "prodigy_step2"),
    ],
}


class _Compiled:
    """A compiled kernel: an index by a grid loads it, and gives a function that launches it."""

    def __getitem__(self, grid: tuple[int, int, int]) -> None:
        """Load the kernel."""


@contextmanager
def _compiler(broken: str = "") -> Iterator[list[str]]:
    """Let Triton compile every kernel at once, except a broken one; yield their names."""
    names: list[str] = []

    def warmup(kernel: Any, *args: Any, **options: Any) -> _Compiled:
        names.append(kernel.__name__)
        if kernel.__name__ == broken:
            raise RuntimeError("no C compiler")
        return _Compiled()

    with mock.patch.object(jit.JITFunction, "warmup", warmup):
        yield names


def _compile(name: str) -> list[torch.Tensor]:
    """Compile the kernels of a first step; return the parameters and states."""
    cls = getattr(optgen.optim, name)
    param = torch.ones(6, 5, requires_grad=True)
    param.grad = torch.ones_like(param)
    optimizer = cls([param])
    with torch.no_grad():
        batches = gather_batches(optimizer)
        (bucket,) = StepBuckets(optimizer, batches).buckets
        update = import_module(f"{cls.lowerings}.fused_triton").update
        compile_kernels(update, bucket, [batches[0].group])
    return [param, *filter(torch.is_tensor, optimizer.state[param].values())]


@pytest.mark.parametrize("name", KERNELS)
def test_all_kernels_are_compiled(name: str) -> None:
    with _compiler() as names:
        first = _compile(name)

    assert names == KERNELS[name]
    assert first[0].eq(1).all()


@pytest.mark.parametrize("name", KERNELS)
def test_the_last_kernel_does_not_compile(name: str) -> None:
    last = KERNELS[name][-1]
    with (
        _compiler(broken=last),
        pytest.raises(Refusal, match=f"cannot compile {last}: no C compiler"),
    ):
        _compile(name)
