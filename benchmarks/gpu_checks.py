"""Check every lowering: against the rule in float64, in graphs, with scalers, with huge tensors.

A check returns its error and the largest error that passes. A check that raises has failed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import optgen.optim
from benchmarks.classes import class_of, torch_class
from benchmarks.gpu_cases import (
    MIN_COMPARED_ELEMENTS,
    STEPS,
    Oracle,
    bound_of,
    draw,
    give_gradients,
    groups,
    parameters,
    refill_gradients,
    settings_of,
)
from benchmarks.gpu_device import (
    DEVICE,
    IS_SMALL,
    REHEARSAL,
    capture,
    on_another_stream,
    synchronize,
)
from optgen import use_lowering

LOWERINGS = ("fused_triton", "foreach", "forloop")
PAST_32_BITS = 2**13 if IS_SMALL else 2**31 + 5000  # elements
ErrorAndLimit = tuple[float, float]
"""The error, and the largest error that passes."""
Check = Callable[[], ErrorAndLimit]
Checks = dict[str, Check]


def trajectory_checks(names: Sequence[str]) -> Checks:
    """Return checks of many steps of every class in float64, through every lowering."""
    return {
        f"{name} {settings or ''} {lowering}": partial(compare_trajectory, name, number, lowering)
        for name in names
        for number, settings in enumerate(settings_of(name))
        for lowering in LOWERINGS
    }


def situation_checks(names: Sequence[str]) -> Checks:
    """Return checks of steps in graphs, on streams, with scalers, and so on."""
    general = {
        "replayed from a graph": compare_graph_replays,
        "with a gradient scaler": compare_scaled_steps,
        "on another stream": compare_steps_on_another_stream,
        "in 20 groups": compare_steps_of_many_groups,
        "resumed by torch from its checkpoint": check_checkpoint,
        "compiled once": check_compiles_once,
    }
    checks = {f"{n} {title}": partial(check, n) for n in names for title, check in general.items()}
    single: Checks = {
        "SparseAdam": compare_sparse_steps,
        "AdamW with states in float32 for bfloat16": check_float32_states,
        "SGD past 2**31 elements": partial(compare_large_tensor, "SGD", (PAST_32_BITS,)),
        "AdamW past 2**31 elements": partial(compare_large_tensor, "AdamW", (PAST_32_BITS,)),
        "Adafactor past 2**31 elements": partial(
            compare_large_tensor, "Adafactor", (PAST_32_BITS // 4096, 4096)
        ),
    }
    chosen = {*names, "SparseAdam"}
    return checks | {title: check for title, check in single.items() if title.split()[0] in chosen}


def compare_trajectory(name: str, number: int, lowering: str) -> ErrorAndLimit:
    """Compare steps in float64 with the rule, from the same values and gradients."""
    params = parameters(name, torch.float64, torch.float64)
    optimizer = class_of(name)(groups(params), **settings_of(name)[number])
    oracle = Oracle(name, params)
    for step in range(STEPS):
        give_gradients(params, torch.float64, step)
        oracle.step(optimizer, params)
        with use_lowering(lowering):
            optimizer.step()
    return oracle.error(params), bound_of(name)


def compare_graph_replays(name: str) -> ErrorAndLimit:
    """Compare replays of a captured step, with new gradients and another learning rate."""
    params = parameters(name, torch.float64, torch.float64)
    lr = torch.tensor(1e-3, dtype=torch.float64, device=DEVICE)
    optimizer, oracle = class_of(name)(params, lr=lr, capturable=True), Oracle(name, params)
    replay: Callable[[], Any] = optimizer.step
    with use_lowering("fused_triton"):
        for step in range(3):
            refill_gradients(params, step)
            oracle.step(optimizer, params)
            with on_another_stream():
                replay()
            synchronize()
        replay = capture(optimizer.step)
    for step in range(3, 8):
        if step == 6:
            lr.fill_(0.1)
        refill_gradients(params, step)
        oracle.step(optimizer, params)
        with use_lowering("fused_triton"):
            replay()
    synchronize()
    return oracle.error(params), bound_of(name)


def compare_scaled_steps(name: str) -> ErrorAndLimit:
    """Compare steps with scaled gradients. Two of the steps overflow and are skipped."""
    params = parameters(name, torch.float32, torch.float32)
    optimizer, oracle = class_of(name)(params, fused=not REHEARSAL), Oracle(name, params)
    grad_scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    for step in range(6):
        give_gradients(params, torch.float32, step)
        if step in (0, 4):
            params[0].grad = torch.full_like(params[0], torch.inf)
        else:
            oracle.step(optimizer, params)
        scale = grad_scaler.scale(torch.ones((), device=DEVICE))
        for param in params:
            if param.grad is not None:
                param.grad.mul_(scale)
        with use_lowering("fused_triton"):
            grad_scaler.step(optimizer)
        grad_scaler.update()
    return oracle.error(params), max(1e-6, bound_of(name))


def compare_steps_on_another_stream(name: str) -> ErrorAndLimit:
    """Compare steps on another stream, with new gradients each time and the host running ahead."""
    params = parameters(name, torch.float64, torch.float64)
    optimizer, oracle = class_of(name)(params), Oracle(name, params)
    with on_another_stream(), use_lowering("fused_triton"):
        for step in range(STEPS):
            give_gradients(params, torch.float64, step)
            oracle.step(optimizer, params)
            optimizer.step()
    synchronize()
    return oracle.error(params), bound_of(name)


def compare_steps_of_many_groups(name: str) -> ErrorAndLimit:
    """Compare steps with 20 groups, whose learning rates change at every step."""
    params = parameters(name, torch.float64, torch.float64)
    optimizer, oracle = class_of(name)(groups(params, 20)), Oracle(name, params)
    for step in range(4):
        give_gradients(params, torch.float64, step)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        oracle.step(optimizer, params)
        with use_lowering("fused_triton"):
            optimizer.step()
    return oracle.error(params), bound_of(name)


def check_checkpoint(name: str) -> ErrorAndLimit:
    """Check that torch's class continues from our checkpoint as our class does."""
    params = parameters(name, torch.float64, torch.float64)
    params = [p for p in params if p.numel()]  # torch's Adafactor divides by the number of elements
    optimizer = class_of(name)(params)
    for step in range(3):
        give_gradients(params, torch.float64, step)
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    torch_params = [t.detach().clone().requires_grad_() for t in params]
    torch_optimizer = torch_class(name)(torch_params)
    give_gradients(torch_params, torch.float64, 0)
    torch_optimizer.step()  # creates torch's states, of which some are on the CPU
    check_places(saved["state"], torch_optimizer.state_dict()["state"])
    for ours, theirs in zip(params, torch_params, strict=True):
        theirs.data.copy_(ours.data)
    torch_optimizer.load_state_dict(saved)
    optimizer.load_state_dict(copy.deepcopy(saved))
    for step in range(3, 6):
        for each, tensors in ((optimizer, params), (torch_optimizer, torch_params)):
            give_gradients(tensors, torch.float64, step)
            each.step()
    pairs = zip(params, torch_params, strict=True)
    errors = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
    return max(errors), max(bound_of(name), 1e-6 if name == "ASGD" else 0.0)


def check_places(ours: Mapping[int, Any], theirs: Mapping[int, Any]) -> None:
    """Raise an error if a state is on another device than torch's."""
    for index, states in theirs.items():
        for key, tensor in states.items():
            place = getattr(ours[index].get(key), "device", None)
            if isinstance(tensor, Tensor) and place not in (tensor.device, None):
                raise AssertionError(
                    f"`{key}` is on {place}, and torch keeps it on {tensor.device}"
                )


def check_compiles_once(name: str) -> ErrorAndLimit:
    """Check that more tensors, other hyperparameters and later steps compile no new kernel."""
    compiled: list[int] = []
    for count in (1, 3, 16, 64):
        tensors = [draw((8, 6), i, torch.float32, torch.float32) for i in range(count)]
        params = [tensor.requires_grad_() for tensor in tensors]
        optimizer = class_of(name)(params, lr=0.1 / count)
        for step in range(3):
            refill_gradients(params, step)
            optimizer.param_groups[0].update(lr=1.0 / (step + 1), weight_decay=step)
            with use_lowering("fused_triton"):
                optimizer.step()
        compiled.append(sum(variant_counts(name)))
    return float(compiled[-1] - compiled[0]), 0.0


def variant_counts(name: str) -> Iterator[int]:
    """Yield the number of compiled variants of every kernel of a class."""
    module = import_module(f"{class_of(name).lowerings}.fused_triton")
    for kernel in vars(module).values():
        for cached, *_ in getattr(kernel, "device_caches", {}).values():
            yield len(cached)


def compare_sparse_steps() -> ErrorAndLimit:
    """Compare steps on sparse gradients of an embedding with torch's class."""
    finals = []
    for cls in (optgen.optim.SparseAdam, torch.optim.SparseAdam):
        param = draw((50, 8), 0, torch.float64, torch.float64).requires_grad_()
        optimizer = cls([param])
        for step in range(4):
            rows = torch.arange(step, 50, 3, device=DEVICE)[None]
            values = draw((rows.numel(), 8), step + 1, torch.float64, torch.float64)
            param.grad = torch.sparse_coo_tensor(rows, values, param.shape)
            optimizer.step()
        finals.append(param.detach())
    return (finals[0] - finals[1]).abs().max().item(), 1e-12


def check_float32_states() -> ErrorAndLimit:
    """Check that float32 states of bfloat16 parameters increase no error."""
    errors = []
    for state_dtype in (torch.float32, torch.bfloat16):
        params = parameters("AdamW", torch.bfloat16, torch.bfloat16)
        optimizer, oracle = optgen.optim.AdamW(params), Oracle("AdamW", params)
        optimizer.init_state()
        for values in optimizer.state.values():
            values |= {k: v.to(state_dtype) for k, v in values.items() if k != "step"}
        for step in range(STEPS):
            give_gradients(params, torch.bfloat16, step)
            oracle.step(optimizer, params)
            with use_lowering("fused_triton"):
                optimizer.step()
        errors.append(oracle.error(params, MIN_COMPARED_ELEMENTS))
    return errors[0], 1.01 * errors[1]


def compare_large_tensor(name: str, size: tuple[int, ...]) -> ErrorAndLimit:
    """Compare a step of a tensor too large for 32-bit indices with that of a small tensor.

    All elements are equal, so all must change alike.
    """
    ends = []
    for shape in (size, (64, *size[1:])):
        param = torch.ones(shape, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
        param.grad = torch.ones_like(param)
        with use_lowering("fused_triton"):
            class_of(name)([param], lr=0.5).step()
        ends.append((param.detach().min().item(), param.detach().max().item()))
    (low, high), (expected, _) = ends
    limit = 0.0 if expected != 1.0 else -1.0  # -1 fails the check: the step changed nothing
    return max(abs(low - expected), abs(high - expected)), limit
