"""Is every lowering right on CUDA: against torch in float64, in graphs, with a gradient scaler.

A check that raises is a check that failed: one run on a rare machine should tell everything.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

import optgen.optim
from benchmarks.classes import accepted, accepts, generated, reference
from optgen import use_lowering

DEVICE = "cuda"
LOWERINGS = ("forloop", "foreach", "fused_triton")
SIZES = ((0,), (), (1,), (15,), (17,), (1024,), (1025,), (100_003,), (64, 33), (8, 16, 3, 3))
SIZES += ((3, 40_000), (300, 400), (5, 16, 17), (1, 1), (700, 1))
LARGE = 100_000  # rounding errors are compared on tensors of at least so many elements
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    "Adam": [{}, {"amsgrad": True, "maximize": True, "weight_decay": 0.1}],
    "AdamW": [{}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}],
    "RAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
}
"""What is checked of a class; of any other, its defaults and weight decay."""
BOUNDS = {"ASGD": 1e-6, "Muon": 5e-3}
"""The error in float64 where torch itself keeps `eta` in float32, or multiplies in bfloat16."""
NEVER_EMPTY = ("Adafactor",)
"""Where torch divides by the number of elements, in Python."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Check = dict[str, Any]
Measured = tuple[float, float]
"""An error, and the largest one that passes."""


def run_checks(names: Sequence[str], quick: bool) -> list[Check]:
    """Every check of these classes with its verdict."""
    steps = 8 if quick else 50
    checks = []
    for name in names:
        for settings in settings_of(name):
            for dtype in DTYPES:
                for lowering in LOWERINGS:
                    label = f"{name} {settings} {str(dtype)[6:]} {lowering}"
                    run = partial(trajectory, name, settings, dtype, lowering, steps)
                    checks.append(verdict(label, run))
        for title, check in (
            ("replayed from a CUDA graph", graph),
            ("with a gradient scaler", scaler),
            ("on a side stream", side_stream),
            ("resumed by torch from its checkpoint", checkpoint),
        ):
            checks.append(verdict(f"{name} {title}", partial(check, name)))
    if not quick:
        checks.append(verdict("SGD past 2**31 elements", beyond_32_bits))
    return checks


def settings_of(name: str) -> list[dict[str, Any]]:
    """The arguments a class is checked with."""
    decayed = [{"weight_decay": 0.1}] if accepts(generated(name), "weight_decay") else []
    return SETTINGS.get(name, [{}, *decayed])


def bound_of(name: str) -> float:
    """The error of float64 that passes."""
    return BOUNDS.get(name, 1e-12)


def verdict(name: str, check: Callable[[], Measured]) -> Check:
    try:
        error, bound = check()
        result: Check = {"name": name, "right": error <= bound, "error": error, "bound": bound}
    except Exception:
        result = {"name": name, "right": False, "raised": traceback.format_exc()}
    print("ok  " if result["right"] else "BAD ", name, result.get("error", ""), flush=True)
    return result


def parameters(name: str, rounded: torch.dtype, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Values rounded to one type, held in another: unaligned, transposed and with holes, too."""
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        drawn = torch.randn(size, generator=generator, dtype=torch.float64)
        return drawn.to(rounded).to(dtype).to(device)

    made = [draw(*size) for size in SIZES]
    made += [draw(1100)[1:1041], draw(25, 44).t(), draw(25, 44)[:, ::2]]
    some = [tensor for tensor in made if tensor.numel() or name not in NEVER_EMPTY]
    return accepted(name, [tensor.detach().requires_grad_() for tensor in some])


def give_gradients(params: Sequence[Tensor], rounded: torch.dtype, step: int) -> None:
    """The same gradients, rounded to a type, wherever and in whatever type the parameters are."""
    generator = torch.Generator().manual_seed(1000 + step)
    for i, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(rounded)
        absent = (i + step) % 7 == 6
        param.grad = None if absent else grad.to(param.dtype).to(param.device)


def groups(params: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 3e-3}]


def error(found: Sequence[Tensor], expected: Sequence[Tensor], least: int = 1) -> float:
    """The largest deviation of a tensor with so many elements, in units of its largest."""
    errors = []
    for a, b in zip(found, expected, strict=True):
        if a.numel() >= least:
            a64, b64 = a.detach().cpu().double(), b.detach().cpu().double()
            errors.append(((a64 - b64).abs().max() / b64.abs().max()).item())
    return max(errors)


def trained(
    make: Callable[[Any], torch.optim.Optimizer],
    params: list[Tensor],
    rounded: torch.dtype,
    steps: int,
    through: AbstractContextManager[Any],
) -> list[Tensor]:
    optimizer = make(groups(params))
    with through:
        for step in range(steps):
            give_gradients(params, rounded, step)
            optimizer.step()
    return params


def trajectory(
    name: str, settings: dict[str, Any], dtype: torch.dtype, lowering: str, steps: int
) -> Measured:
    """Against torch's for-loop in float64 from the same rounded values and gradients."""
    theirs = partial(reference(name), **settings)
    ours = partial(generated(name), **settings)
    in_float64 = parameters(name, dtype, torch.float64, "cpu")
    exact = trained(theirs, in_float64, dtype, steps, nullcontext())
    start = partial(parameters, name, dtype, dtype, DEVICE)
    found = trained(ours, start(), dtype, steps, use_lowering(lowering))
    if dtype == torch.float64:
        return error(found, exact), bound_of(name)
    loop = trained(theirs, start(), dtype, steps, nullcontext())
    allowed = 1.0 if dtype.itemsize == 2 and lowering == "fused_triton" else 1.5
    floor = 1e-7 if dtype == torch.float32 else 0.0
    return error(found, exact, LARGE), max(allowed * error(loop, exact, LARGE), floor)


def graph(name: str) -> Measured:
    """Warm up, capture one step, replay it with other gradients and another learning rate."""
    params, others = (parameters(name, torch.float64, torch.float64, DEVICE) for _ in range(2))
    lr = torch.tensor(1e-3, dtype=torch.float64, device=DEVICE)
    optimizer = generated(name)(params, lr=lr, capturable=True)
    other = reference(name)(others, lr=1e-3)
    with use_lowering("fused_triton"):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for step in range(3):
                copy_gradients(params, step)
                optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            optimizer.step()
    for step in range(6):
        if step == 5:
            lr.fill_(0.1)
            other.param_groups[0]["lr"] = 0.1
        copy_gradients(others, step)
        other.step()
        if step >= 3:
            copy_gradients(params, step)
            captured.replay()
    torch.cuda.synchronize()
    return error(params, others), bound_of(name)


def copy_gradients(params: Sequence[Tensor], step: int) -> None:
    """Gradients in the same memory at every step, as a captured backward pass writes them."""
    generator = torch.Generator().manual_seed(1000 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(param)
        if param.grad is None:
            param.grad = grad.clone()
        else:
            param.grad.copy_(grad)


def scaler(name: str) -> Measured:
    """Scaled gradients, twice with an infinity among them, against torch's unfused class."""
    finals = []
    for make in (partial(generated(name), fused=True), reference(name)):
        params = parameters(name, torch.float32, torch.float32, DEVICE)
        optimizer = make(params)
        grad_scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for step in range(8):
            give_gradients(params, torch.float32, step)
            scale = grad_scaler.scale(torch.ones((), device=DEVICE))
            for param in params:
                if param.grad is not None:
                    param.grad.mul_(scale)
            if step in (0, 4):
                params[-1].grad = torch.full_like(params[-1], torch.inf)
            grad_scaler.step(optimizer)
            grad_scaler.update()
        finals.append(params)
    return error(*finals), max(1e-6, bound_of(name))


def side_stream(name: str) -> Measured:
    """Steps on another stream, gradients moving at each, the host running ahead."""
    params, others = (parameters(name, torch.float64, torch.float64, DEVICE) for _ in range(2))
    optimizer = generated(name)(params)
    other = reference(name)(others)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), use_lowering("fused_triton"):
        for step in range(20):
            give_gradients(params, torch.float64, step)
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    for step in range(20):
        give_gradients(others, torch.float64, step)
        other.step()
    return error(params, others), bound_of(name)


def checkpoint(name: str) -> Measured:
    """What the default hands out looks like torch's, and torch continues from it."""
    params = parameters(name, torch.float64, torch.float64, DEVICE)
    optimizer = generated(name)(params)
    for step in range(3):
        give_gradients(params, torch.float64, step)
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for values in saved["state"].values():
        if "step" in values and not values["step"].is_cpu:
            raise AssertionError("torch keeps `step` on the CPU here")
    others = [t.detach().clone().requires_grad_() for t in params]
    other = reference(name)(others)
    other.load_state_dict(saved)
    optimizer.load_state_dict(copy.deepcopy(saved))
    for step in range(3, 6):
        for each, tensors in ((optimizer, params), (other, others)):
            give_gradients(tensors, torch.float64, step)
            each.step()
    return error(params, others), bound_of(name)


def beyond_32_bits() -> Measured:
    """One tensor of 2**31 + 5000 elements: the last ones must move like the first."""
    param = torch.ones(2**31 + 5000, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    param.grad = torch.ones_like(param)
    with use_lowering("fused_triton"):
        optgen.optim.SGD([param], lr=0.5).step()
    return float((param.detach() != 0.5).sum().item()), 0.0
