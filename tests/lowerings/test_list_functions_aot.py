"""Test the kernels of functions over lists, compiled without a GPU for three GPUs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from optgen.generated.averaging import ema as generated_ema
from optgen.generated.averaging import swa as generated_swa
from optgen.runtime.backends import backend

pytest.importorskip("triton")

from benchmarks.triton_aot_assembly import figures
from benchmarks.triton_aot_compile import TARGETS, compiling_for


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_are_exact_and_spill_nothing(
    target: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Nothing is spilled, arithmetic is exact, and whole blocks are accessed 16 bytes at a time."""
    functions: list[Callable[..., None]] = [generated_ema.ema, generated_swa.swa]
    forget_calls()  # they may be for another target
    with compiling_for(target, str(tmp_path)) as launches:
        for function in functions:
            function([torch.ones(4096, dtype=dtype)], [torch.ones(4096, dtype=dtype)])
    forget_calls()

    names = [launch.name for launch in launches]
    assert names == ["ema_scalars", "ema_step", "swa_scalars", "swa_step"]
    for launch in launches:
        found = figures(launch.compiled, launch.options)
        assert (found.spilled_bytes, found.shared_bytes, found.inexact_instructions) == (0, 0, ())
        assert found.has_widest_accesses


def forget_calls() -> None:
    """Forget the plans of earlier calls."""
    backend("fused_triton")._function_buckets.clear()
    for module in (generated_ema, generated_swa):
        module._update._cached.clear()
