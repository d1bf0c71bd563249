"""Test kernels for exactly the dtypes of a model, also if tensors of other dtypes come later."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import use_lowering
from optgen.optim import SGD, Adafactor, Muon
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.toolchain import dtype_variants, library_cache
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES

SHAPES = [(64, 200), (7,), (5, 3, 3, 3), (4, 1, 1)]


@pytest.fixture(autouse=True)
def no_loaded_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget all loaded kernels, as in a new process."""
    monkeypatch.setattr(kernel_loader, "_kernels", {})


def parameters(*dtypes: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    values = [torch.randn(shape, dtype=dtype) for dtype in dtypes for shape in SHAPES]
    params = [torch.nn.Parameter(value) for value in values]
    for param in params:
        param.grad = (3 * param.detach()).cos()
    return params


def built_dtypes(cls: Any = Adafactor) -> set[torch.dtype]:
    """Return the dtypes that the kernel in use was built for."""
    kernel = kernel_loader.kernel_or_reason(cls)
    assert isinstance(kernel, Kernel)
    return {dtype for dtype, code in DTYPE_CODES.items() if kernel.dtype_bits >> code & 1}


def kernel_count(cls: Any = Adafactor) -> int:
    """Return how many kernels have been loaded for a class."""
    return len(kernel_loader._kernels[sys.modules[cls.lowerings]])


@pytest.mark.parametrize(
    ("dtype", "dtypes"),
    [
        (torch.float32, {torch.float32}),
        (torch.bfloat16, {torch.float32, torch.bfloat16}),
        (torch.float16, {torch.float32, torch.float16}),
        (torch.float64, {torch.float64}),
    ],
)
def test_a_kernel_is_built_for_the_dtypes_of_the_model(
    dtype: torch.dtype, dtypes: set[torch.dtype]
) -> None:
    with use_lowering("fused_cpu"):
        optimizer = Adafactor(parameters(dtype))
        for _ in range(2):
            optimizer.step()

    assert built_dtypes() == dtypes
    assert kernel_count() == 1
    assert optimizer._context.cached_step is not None  # the reader took the float32 step count, too


@pytest.mark.parametrize("strided", [False, True])
def test_groups_of_several_dtypes_share_a_library(strided: bool) -> None:
    """Strided gradients, which only Python can gather, use the same library."""
    groups = [{"params": parameters(dtype)} for dtype in DTYPE_CODES]
    if strided:
        for group in groups:
            for param in group["params"]:
                param.grad = torch.stack([param.grad, param.grad], -1)[..., 0]
    with use_lowering("fused_cpu"):
        Adafactor(groups).step()

    assert kernel_count() == 1
    assert built_dtypes() == set(DTYPE_CODES)


def test_a_parameter_that_becomes_float64_is_computed_in_float64() -> None:
    """A kernel without float64 would read the state's memory as float32."""
    params, expected = parameters(torch.float32), parameters(torch.float32)
    optimizer, reference = Adafactor(params), torch.optim.Adafactor(expected)
    with use_lowering("fused_cpu"):
        for _ in range(2):
            optimizer.step()
            reference.step()
        assert torch.float64 not in built_dtypes()
        for param, other in zip(params, expected, strict=True):
            state = optimizer.state[param]
            state |= {k: v.double() for k, v in state.items() if k != "step"}
            reference.state[other] = {k: v.clone() for k, v in state.items()}
            for each in (param, other):
                each.grad = None
                each.data = param.detach().double().clone()
                each.grad = torch.ones_like(each)
        for _ in range(2):
            optimizer.step()
            reference.step()

    assert torch.float64 in built_dtypes()
    for param, other in zip(params, expected, strict=True):
        torch.testing.assert_close(param, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPE_CODES)
@pytest.mark.parametrize("cls", [Adafactor, Muon])
def test_the_results_of_a_dtype_do_not_depend_on_other_dtypes(cls: Any, dtype: torch.dtype) -> None:
    """A tensor gets the same bits in a model of one dtype and beside all other dtypes."""
    others = [other for other in DTYPE_CODES if other != dtype]
    alone, mixed = parameters(dtype), parameters(dtype, *others)
    if cls is Muon:
        alone, mixed = ([p for p in params if p.ndim == 2] for params in (alone, mixed))
    with use_lowering("fused_cpu"):
        for params in (alone, mixed):
            optimizer = cls(params)
            for _ in range(3):
                optimizer.step()

    assert built_dtypes(cls) == set(DTYPE_CODES)
    assert all(map(torch.equal, alone, mixed))


def test_a_float32_parameter_that_comes_later_gets_a_kernel() -> None:
    """The kernel of a float64 model reads float32 step counts, but takes no float32 parameters."""
    params, expected = parameters(torch.float64), parameters(torch.float32)
    optimizer = Adafactor(params)
    with use_lowering("fused_cpu"):
        for _ in range(2):
            optimizer.step()
        assert built_dtypes() == {torch.float64}
        optimizer.add_param_group({"params": parameters(torch.float32)})
        reference = Adafactor(expected)
        optimizer.step()
        reference.step()

    assert built_dtypes() == {torch.float32, torch.float64}
    assert all(map(torch.equal, optimizer.param_groups[1]["params"], expected))


def test_a_float32_gradient_of_a_float64_parameter_is_read_in_its_own_dtype() -> None:
    """The next cached step reads the gradient in its own dtype."""
    params, expected = parameters(torch.float64), parameters(torch.float64)
    optimizers = [Adafactor(params), Adafactor(expected)]
    with use_lowering("fused_cpu"):
        for optimizer in optimizers:
            optimizer.step()
        for param, other in zip(params, expected, strict=True):
            param.grad = None
            param.grad_dtype = torch.float32
            param.grad = torch.full_like(param, 0.5, dtype=torch.float32)
            other.grad = torch.full_like(other, 0.5)
        for optimizer in optimizers:
            optimizer.step()

    assert built_dtypes() == {torch.float32, torch.float64}
    assert all(map(torch.equal, params, expected))


@pytest.mark.usefixtures("with_and_without_reader")
def test_a_step_count_of_another_dtype_builds_nothing() -> None:
    """The cached step stays, and takes the new step count."""
    params, expected = parameters(torch.float32), parameters(torch.float32)
    optimizers = [Adafactor(params), Adafactor(expected)]
    with use_lowering("fused_cpu"):
        for optimizer in optimizers:
            optimizer.step()
        cached = optimizers[0]._context.cached_step
        for state in optimizers[0].state.values():
            state["step"] = state["step"].double()
        for optimizer in optimizers:
            optimizer.step()

    assert optimizers[0]._context.cached_step is cached
    assert kernel_count() == 1
    assert all(map(torch.equal, params, expected))


def test_a_rule_of_one_sweep_is_built_for_the_dtypes_of_the_model() -> None:
    bits = []
    with use_lowering("fused_cpu"):
        for dtype in (torch.float32, torch.float64):
            SGD(parameters(dtype)).step()
            kernel = kernel_loader.kernel_or_reason(SGD)
            assert isinstance(kernel, Kernel)
            bits.append(kernel.dtype_bits)

    single, double = (
        dtype_variants.bits_of_dtypes([dtype]) for dtype in (torch.float32, torch.float64)
    )
    assert bits == [single, single | double]


@pytest.mark.parametrize(
    ("cached", "expected"), [([], "new 64"), (["all", "two"], "two"), (["all", "one"], "one")]
)
def test_a_cached_library_with_more_dtypes_is_used(
    monkeypatch: pytest.MonkeyPatch, cached: list[str], expected: str
) -> None:
    """The cached library with the fewest dtypes is used; one is built only if none is cached."""
    single, double = (
        dtype_variants.bits_of_dtypes([dtype]) for dtype in (torch.float32, torch.float64)
    )
    titles = {single: "one", single | double: "two", dtype_variants.ALL_DTYPE_BITS: "all"}

    def find_cached(_: str, source: str) -> str | None:
        title = titles.get(int(source.split()[2]))
        return title if title in cached else None

    monkeypatch.setattr(library_cache, "find_built", find_cached)
    monkeypatch.setattr(library_cache, "library", lambda _, source: f"new {source.split()[2]}")

    assert dtype_variants.library("any", "#ifdef OPTGEN_TYPES", single) == (expected, single)
