"""Optimizers for parameters on a device whose states and steps are on the host.

`optgen.offload` is the way in. It composes the rule with float32 weights (`host_rule.py`), divides
the parameters into buckets (`buckets.py`), and makes an `OffloadedOptimizer` (`optimizer.py`). Its
worker thread (`worker.py`) runs each step as a pass over the buckets (`bucket_pipeline.py`). The
pass copies through a ring of slots, on streams (`pinned_ring.py`), and calls the rule's C++ kernel
once for each bucket (`bucket_kernel.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.optimizer import ParamsT

from optgen.offloading.host_rule import offload_rule
from optgen.offloading.optimizer import OffloadedOptimizer
from optgen.offloading.options import UNSAID, Gradients, Hide, Options, Unsaid, thread_count
from optgen.offloading.report import Report
from optgen.offloading.train_and_eval import OffloadedModeOptimizer
from optgen.offloading.worker import OffloadError
from optgen.runtime.programs import ModeOptimizer

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer
    from optgen.spec.declare import Spec

__all__ = ["OffloadError", "OffloadedOptimizer", "Report", "offload"]


def offload(
    rule: type[GeneratedOptimizer] | str | os.PathLike[str] | Spec,
    params: ParamsT,
    *,
    gradients: Gradients = "stay",
    hide: Hide | None = None,
    clip_norm: float | Unsaid | None = UNSAID,
    accumulation: int | None = None,
    bucket_bytes: int = 1 << 25,
    slots: int = 4,
    threads: int | None = None,
    keep_on_device: int = 4096,
    state_dir: str | os.PathLike[str] | None = None,
    module: nn.Module | None = None,
    time_limit: float = 600.0,
    **hyper: Any,
) -> OffloadedOptimizer:
    """Make an optimizer for parameters on a device, with its states and its steps on the host.

    The weights are kept in float32 on the host, and the parameters hold their rounded values. All
    results have the same bits as those of `compose(rule, modifiers.state_dtype("float32"),
    modifiers.master)` on the CPU, except those of small parameters, which the device steps.

    Args:
        rule: A class of optgen, a name of the catalogue, a composition of `compose`, or a spec.
        params: Parameters or groups, named or not, as optimizers take them. They are on a device,
            and of bfloat16, float16 or float32.
        gradients: "stay": they stay in `.grad` until `step`, so clipping, scaling and accumulation
            work as in torch. "leave": hooks copy each gradient into the ring during the backward
            pass, and free it. Then `clip_norm` must be said. Several passes are summed on the host,
            in float32 unless `accumulation=1`.
        hide: "forward": `step` returns when the factor of clipping is known. Parameters are stepped
            in the order in which the next forward pass reads them, and each module waits for its
            own. This is the default with `module`. "nothing": `step` returns when the new weights
            are on the device. This is the default without it. "backward": gradients that leave are
            stepped as they come, and the weights are sent by `step`. It cannot clip or accumulate.
        clip_norm: Gradients are scaled so that the norm of all of them is at most this. The scaling
            is exact. Default: no clipping.
        accumulation: How many gradients of a parameter a step takes at most; one more is an error.
            Only with gradients="leave". Default: any number.
        bucket_bytes: The bytes of a slot of the pinned ring. A multiple of 64.
        slots: The slots of each direction. The ring is exactly 2 * slots * bucket_bytes.
        threads: The threads of a kernel's call, apart from torch's. Default: the cores that this
            process may use, divided by LOCAL_WORLD_SIZE, less one.
        keep_on_device: Parameters of at most this many elements are stepped on the device.
        state_dir: A folder. States that are not numbers are in files without names on its disk,
            which are mapped into memory. The bits of all results are those of states in memory.
            Default: states are in memory.
        module: The model, whose modules wait for their weights.
        time_limit: The seconds that one stage of a step may last until a wait for it is an error.
        **hyper: The arguments of the rule's class.

    Raises:
        ValueError: The rule, a parameter or a choice is refused; the message says why.
        MemoryError: The host has no room; the message has a table of bytes.
        OffloadError: The disk of `state_dir` has no room; the message has the bytes.
        CompositionError: The rule cannot keep its weights in float32.
    """
    options = Options(
        gradients,
        hide or ("nothing" if module is None else "forward"),
        clip_norm,
        accumulation,
        bucket_bytes,
        slots,
        thread_count(threads),
        keep_on_device,
        None if state_dir is None else Path(state_dir),
        module,
        time_limit,
    )
    chosen = offload_rule(rule, clips=options.max_norm is not None)
    has_modes = issubclass(chosen.public, ModeOptimizer)
    cls = OffloadedModeOptimizer if has_modes else OffloadedOptimizer
    return cls(params, chosen, options, hyper)
