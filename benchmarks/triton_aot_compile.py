"""Kernels for GPUs that are not here: a step compiles what it would launch, for any of them.

The runtime itself decides on buckets, arguments and options; only the driver is a stand-in, which
says what device there would be. Nothing is launched. With TRITON_INTERPRET set nothing compiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from benchmarks.ahead_figures import Figures, figures
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from benchmarks.classes import accepted
from optgen import use_lowering
from optgen.runtime import fused_triton

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "mixed": (torch.bfloat16, torch.float32),
    "float64": (torch.float64, torch.float64),
}
"""Of parameters and gradients, and of their states."""
SHAPES = ((64, 256), (30, 40, 3, 3), (256, 64, 1, 1), (5000,))
"""Of parameters: a rule that goes by matrices has another tile for each of these."""


class Launch(NamedTuple):
    """What a step would launch."""

    name: str
    grid: tuple[int, ...]
    options: dict[str, Any]
    compiled: Any


class Case(NamedTuple):
    """How a class is compiled."""

    target: str
    types: str = "float32"
    flags: bool = False  # with all states that it may keep
    scaled: bool = False  # with a gradient scaler


@dataclass(frozen=True)
class Absent:
    """A driver of a device that nobody has."""

    target: str

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self.target]

    def get_current_device(self) -> int:
        return list(TARGETS).index(self.target)  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(target: str, cache: str) -> Iterator[list[Launch]]:
    """Inside, fused Triton steps of CPU tensors compile for a target; the list grows by launches.

    `cache` is a folder for Triton's own files. An optimizer is to be made inside.
    """
    seen: list[Launch] = []

    def prepare(kernel: Any, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            compiled = kernel.run(*args, grid=grid, warmup=True, **options)
            seen.append(Launch(compiled.name, grid, options, compiled))

        return launch

    stand_ins = (
        (JITFunction, "__getitem__", prepare),
        (fused_triton, "obstacle", lambda device: ""),
        (driver, "_active", Absent(target)),
        (torch.version, "hip", "any" if TARGETS[target].backend == "hip" else None),
    )
    with ExitStack() as stack, knobs.cache.scope(), use_lowering("fused_triton"):
        for owner, name, stand_in in stand_ins:
            stack.enter_context(patch.object(owner, name, stand_in))
        knobs.cache.dir = cache
        yield seen


def kernels(kind: Any, case: Case, cache: str) -> dict[str, Figures]:
    """The figures of everything that a step of a class launches, by the kernels' names."""
    with compiling_for(case.target, cache) as seen:
        step(kind, case)
    return {one.name: figures(one.compiled, one.options) for one in seen}


def step(kind: Any, case: Case) -> None:
    """Take a step with parameters and states of a case's types."""
    dtype, kept = TYPES[case.types]
    params = accepted(kind, [torch.ones(size, dtype=dtype, requires_grad=True) for size in SHAPES])
    for param in params:
        ones = torch.ones_like(param)
        param.grad = ones.to_sparse(1) if kind.rule.gradient == "sparse_only" else ones
    optimizer = kind(params, **(flags_of(kind) if case.flags else {}))
    optimizer.init_state()
    for values in optimizer.state.values():
        values |= {k: v.to(kept) for k, v in values.items() if k != "step" and v.ndim}
    if case.scaled:
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    optimizer.step()


def flags_of(kind: Any) -> dict[str, Any]:
    """The arguments with which a class keeps all the states it can."""
    group = kind([torch.zeros(2, 2)]).param_groups[0]
    named = {state.when.removeprefix("not ") for state in kind.rule.states if state.when}
    return {n: True if isinstance(group[n], bool) else 0.9 for n in sorted(named & set(group))}
