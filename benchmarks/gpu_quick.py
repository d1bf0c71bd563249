"""The first five minutes on a card: what is wrong, and what is slow.

Five classes take one step in 32 and 16 bits, which is compared with the rule in float64. Then the
same steps are taken from a graph, with a gradient scaler and on another stream. Each must give the
bits that plain steps give. Then steps are timed, and the kernels in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.classes import class_of
from benchmarks.gpu_cases import parameters, refill_gradients
from benchmarks.gpu_device import DEVICE, REHEARSAL, capture, on_another_stream, synchronize
from benchmarks.gpu_kernels import kernel_tasks
from benchmarks.gpu_one_step import MATRIX_ERRORS, compare_one_step
from benchmarks.gpu_results import Result, result_of
from benchmarks.gpu_speed import lists_of, memory, quick_comparisons
from optgen import use_lowering

CLASSES = ("AdamW", "SGD", "Adafactor", "Muon", "SOAP")
DTYPES = (torch.float32, torch.bfloat16)
KERNEL_LISTS = ("2.5e7", "resnet50")
WARM_UP, REPLAYS = 3, 4
SCALE = 2.0**10
"""A power of two, so that scaling and unscaling round nothing."""
WAITS_FOR_THE_HOST = "not tried: the host reads a decomposition"


def tasks(names: Sequence[str]) -> dict[str, Callable[[], Result]]:
    """Return the tasks by name, class by class; the kernels of all classes come last."""
    chosen = [name for name in CLASSES if name in names]
    all_tasks: dict[str, Callable[[], Result]] = {"memory": memory}
    for name in chosen:
        for dtype in DTYPES:
            title = f"{name}, {str(dtype)[6:]}"
            lowering = "foreach" if class_of(name).rule.why_uncut else "fused_triton"
            one_step = partial(compare_one_step, name, 0, dtype, lowering)
            all_tasks[f"{title}: one step against float64"] = result_of(one_step)
            for how, compare in {"in a graph": graph, "with a scaler": scaler}.items():
                all_tasks[f"{title}: {how}"] = partial(compare, name, dtype)
            all_tasks[f"{title}: on another stream"] = partial(stream, name, dtype)
    for name in chosen:
        for dtype in DTYPES:
            all_tasks |= quick_comparisons(name, dtype)
    cut = tuple(name for name in chosen if not class_of(name).rule.why_uncut)
    return all_tasks | kernel_tasks(cut, lists_of(KERNEL_LISTS), DTYPES)


def graph(name: str, dtype: torch.dtype) -> Result:
    """Compare replays of a captured step with steps that are not captured."""
    if class_of(name).rule.why_uncut:
        return {"absent": WAITS_FOR_THE_HOST}
    return equality(name, steps_in_a_graph(name, dtype, True), steps_in_a_graph(name, dtype, False))


def steps_in_a_graph(name: str, dtype: torch.dtype, is_captured: bool) -> list[Tensor]:
    """Take steps with a learning rate on the device; return all tensors of the optimizer."""
    params = parameters(name, dtype, dtype)
    lr = torch.tensor(1e-3, device=DEVICE)
    optimizer = class_of(name)(params, lr=lr, fused=not REHEARSAL, capturable=True)
    step: Callable[[], Any] = optimizer.step
    with lowering_of(name):
        for number in range(WARM_UP + REPLAYS):
            if number == WARM_UP and is_captured:
                step = capture(optimizer.step)
            if number == WARM_UP + 1:
                lr.fill_(0.1)
            refill_gradients(params, number)
            with on_another_stream() if number < WARM_UP else nullcontext():
                step()
            synchronize()
    return tensors_of(optimizer, params)


def scaler(name: str, dtype: torch.dtype) -> Result:
    """Compare steps with scaled gradients, one of which overflows, with plain steps."""
    params = parameters(name, dtype, dtype)
    optimizer = class_of(name)(params)
    grad_scaler = torch.amp.GradScaler(DEVICE, init_scale=SCALE, growth_interval=1000)
    grad_scaler.scale(torch.ones((), device=DEVICE))
    with lowering_of(name):
        for number in (0, 1, -1, 2, 3):  # -1 overflows, and is skipped
            refill_gradients(params, number)
            for param in params:
                assert param.grad is not None
                param.grad.mul_(grad_scaler.get_scale() if number >= 0 else torch.inf)
            grad_scaler.step(optimizer)
            grad_scaler.update()
    return equality(name, tensors_of(optimizer, params), plain_steps(name, dtype))


def stream(name: str, dtype: torch.dtype) -> Result:
    """Compare steps on another stream, while the host runs ahead, with plain steps."""
    params = parameters(name, dtype, dtype)
    optimizer = class_of(name)(params)
    with on_another_stream(), lowering_of(name):
        for number in range(4):
            refill_gradients(params, number)
            optimizer.step()
    synchronize()
    return equality(name, tensors_of(optimizer, params), plain_steps(name, dtype))


@cache
def plain_steps(name: str, dtype: torch.dtype) -> list[Tensor]:
    """Take four steps; return the parameters and states."""
    params = parameters(name, dtype, dtype)
    optimizer = class_of(name)(params)
    with lowering_of(name):
        for number in range(4):
            refill_gradients(params, number)
            optimizer.step()
    return tensors_of(optimizer, params)


def lowering_of(name: str) -> Any:
    """Return the context in which a class steps as it does by default on CUDA."""
    return nullcontext() if class_of(name).rule.why_uncut else use_lowering("fused_triton")


def tensors_of(optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of parameters and states, on the host."""
    states = (optimizer.state[param] for param in params)
    held = [v for state in states for v in state.values() if isinstance(v, Tensor)]
    return [tensor.detach().to("cpu", copy=True) for tensor in (*params, *held)]


def equality(name: str, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> Result:
    """Return the result of a check that tensors are equal, bit for bit if no matrix op is used.

    A library of matrix products may choose another order of sums on another stream.
    """
    limit = MATRIX_ERRORS.get(name, 0.0)
    error = 0.0
    for a, b in zip(actual, expected, strict=True):
        if a.numel() and not torch.equal(a, b):
            difference = (a.double() - b.double()).abs().max() / b.double().abs().max()
            error = max(error, difference.nan_to_num(nan=torch.inf).item())
    return {"right": error <= limit, "error": error, "limit": limit}
