"""Compile the Triton kernels of a step ahead of time, for GPUs that this machine lacks.

The runtime itself chooses buckets, arguments and options. Only the driver is a stand-in, which
names the target device. Nothing is launched. With TRITON_INTERPRET set, nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, get_origin

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from benchmarks.classes import accepted_parameters, accepts_argument
from benchmarks.triton_aot_assembly import Figures, figures
from optgen import use_lowering
from optgen.runtime.elementwise import Elementwise
from optgen.runtime.fused_triton import backend, folds
from optgen.runtime.rule import State
from optgen.verification.patch_attribute import patch_attribute

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
"""The dtype of parameters and gradients, and that of their states."""
Shapes = Sequence[tuple[int, ...]]
SHAPES: Shapes = ((64, 256), (30, 40, 3, 3), (256, 64, 1, 1), (5000,))
"""Shapes of parameters. A rule on matrices has a different tile for each of them."""


class Launch(NamedTuple):
    """A kernel launch that a step would make."""

    name: str
    grid: tuple[int, ...]
    options: dict[str, Any]
    compiled: Any
    arguments: tuple[Any, ...] = ()  # by position


class Case(NamedTuple):
    """Settings with which a class is compiled."""

    target: str
    types: str = "float32"
    flags: bool = False  # with all optional states
    scaled: bool = False  # with a gradient scaler


@dataclass(frozen=True)
class TargetDriver:
    """Driver that names a target device, which this machine need not have."""

    target: str

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self.target]

    def get_current_device(self) -> int:
        return list(TARGETS).index(self.target)  # Triton caches kernels by device

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(
    target: str,
    cache: str,
    receive: Callable[[Launch], None] | None = None,
    is_wanted: Callable[[str], bool] = bool,
) -> Iterator[list[Launch]]:
    """Make fused Triton steps of CPU tensors compile for a target; yield a list of their launches.

    `cache` is a folder for Triton's files. `receive` gets the launches instead of the list.
    Launches of kernels whose names are not wanted are left out. Make the optimizer inside the
    context.
    """
    launches: list[Launch] = []
    receive_launch = receive or launches.append

    def prepare(kernel: Any, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            if not is_wanted(kernel.fn.__name__):
                return
            compiled = kernel.run(*args, grid=grid, warmup=True, **options)
            receive_launch(Launch(compiled.name, grid, options, compiled, args))

        return launch

    stand_ins = (
        (JITFunction, "__getitem__", prepare),
        (backend, "device_obstacle", lambda device: ""),
        (driver, "_active", TargetDriver(target)),
        (torch.version, "hip", "any" if TARGETS[target].backend == "hip" else None),
    )
    with ExitStack() as stack, knobs.cache.scope(), use_lowering("fused_triton"):
        for owner, name, value in stand_ins:
            stack.enter_context(patch_attribute(owner, name, value))
        knobs.cache.dir = cache
        yield launches


@contextmanager
def folding() -> Iterator[None]:
    """Make a step fold the partial sums of all tensors, as it does for large ones."""
    with patch_attribute(folds, "chunk_count", lambda count, readers: 1):
        yield


def figures_of(cls: Any, case: Case, cache: str) -> dict[str, Figures]:
    """Compile every kernel that a step of a class launches; return their figures by name."""
    with compiling_for(case.target, cache) as launches, folding():
        take_step(cls, case)
    return {each.name: figures(each.compiled, each.options) for each in launches}


def take_step(cls: Any, case: Case, shapes: Shapes = SHAPES) -> None:
    """Take a step with parameters of a case's dtypes; states have its dtype or a declared one."""
    dtype, state_dtype = TYPES[case.types]
    params = accepted_parameters(
        cls, [torch.ones(size, dtype=dtype, requires_grad=True) for size in shapes]
    )
    for param in params:
        ones = torch.ones_like(param)
        param.grad = ones.to_sparse(1) if cls.rule.gradient == "sparse_only" else ones
    optimizer = cls(params, **(flags_of(cls) if case.flags else {}))
    optimizer.init_state()
    undeclared = {state.key for state in cls.rule.states if state.dtype is None}
    for values in optimizer.state.values():
        values |= {k: v.to(state_dtype) for k, v in values.items() if k in undeclared and v.ndim}
    if case.scaled:
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    inputs = {each.step_argument: list(map(torch.ones_like, params)) for each in cls.rule.inputs}
    optimizer.step(**inputs)


def call_function(update: Elementwise, case: Case, shapes: Shapes = SHAPES) -> None:
    """Call a function over lists of tensors of a case's dtypes."""
    dtype, state_dtype = TYPES[case.types]
    dtypes = [dtype, dtype, *(state_dtype for _ in update.rule.states)]
    lists = [
        [torch.ones(size, dtype=each) for size in sizes]
        for sizes, each in zip(shapes_of_lists(update, shapes), dtypes, strict=True)
    ]
    update(*lists, **example_hypers(update))


def shapes_of_lists(update: Elementwise, shapes: Shapes) -> list[Shapes]:
    """Return the shapes of the tensors in each list of a function.

    A function on rows or columns, or with lists of rows, columns or numbers, takes no vectors.
    """
    states = update.rule.states
    if update.rule.by_matrix or any(state.shape != "like" for state in states):
        shapes = [shape for shape in shapes if len(shape) > 1]

    def shape_beside(state: State, shape: tuple[int, ...]) -> tuple[int, ...]:
        if state.shape == "scalar":
            return (1,) * len(shape)
        return tuple(state.shape_for(torch.empty(shape, device="meta")))

    return [shapes, shapes, *([shape_beside(state, s) for s in shapes] for state in states)]


def example_hypers(update: Elementwise) -> dict[str, Any]:
    """Return a different number for each hyperparameter of a function."""
    annotations, hypers = update.hyper_annotations(), {}
    for number, name in enumerate(update.rule.hypers):
        value = 0.25 + 0.05 * number
        is_pair = get_origin(annotations[name]) is tuple
        hypers[name] = (value, value + 0.5) if is_pair else value
    return hypers


def flags_of(cls: Any) -> dict[str, Any]:
    """Return the arguments with which a class has all its optional states."""
    group = cls([torch.zeros(2, 2)]).param_groups[0]
    named = {state.when.removeprefix("not ") for state in cls.rule.states if state.when}
    accepted = {n for n in named & set(group) if accepts_argument(cls, n)}
    return {n: True if isinstance(group[n], bool) else 0.9 for n in sorted(accepted)}
