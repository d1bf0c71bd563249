"""Kernels that were built without double, and what happens when a tensor of float64 comes."""

import pytest
import torch
from torch import Tensor

from optgen import use_lowering
from optgen.optim import SGD, Adafactor
from optgen.runtime import fused_cpu
from optgen.runtime.fused_cpu import build_cache, doubles
from optgen.runtime.fused_cpu.kernel import Kernel

SHAPES = [(64, 200), (7,), (5, 3, 3, 3), (4, 1, 1)]


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(fused_cpu, "_kernels", {})


def parameters(*dtypes: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    values = [torch.randn(shape, dtype=dtype) for dtype in dtypes for shape in SHAPES]
    params = [torch.nn.Parameter(value) for value in values]
    for param in params:
        param.grad = (3 * param.detach()).cos()
    return params


def has_doubles() -> bool:
    kernel = fused_cpu._kernel(Adafactor)
    assert isinstance(kernel, Kernel)
    return kernel.doubles


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_without_float64_nothing_is_built_for_it(dtype: torch.dtype) -> None:
    optimizer = Adafactor(parameters(dtype))
    with use_lowering("fused_cpu"):
        optimizer.step()

    assert not has_doubles()


def test_a_double_that_comes_later_is_computed_with_in_double() -> None:
    """The kernel without would take its memory for floats."""
    params, expected = parameters(torch.float32), parameters(torch.float32)
    optimizer, reference = Adafactor(params), torch.optim.Adafactor(expected)
    with use_lowering("fused_cpu"):
        for _ in range(2):
            optimizer.step()
            reference.step()
        assert not has_doubles()
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

    assert has_doubles()
    for param, other in zip(params, expected, strict=True):
        torch.testing.assert_close(param, other, rtol=1e-11, atol=1e-13)


def test_both_types_in_one_step() -> None:
    """What is of float32 keeps the bits it has in a model without any double."""
    alone, mixed = parameters(torch.float32), parameters(torch.float32, torch.float64)
    with use_lowering("fused_cpu"):
        for params in (alone, mixed):
            optimizer = Adafactor(params)
            for _ in range(3):
                optimizer.step()

    assert all(map(torch.equal, alone, mixed))


def test_a_rule_of_one_sweep_has_one_library() -> None:
    with use_lowering("fused_cpu"):
        SGD(parameters(torch.float32)).step()
        known = fused_cpu._kernel(SGD)
        SGD(parameters(torch.float64)).step()

    assert isinstance(known, Kernel)
    assert fused_cpu._kernel(SGD, with_double=True) is known


def test_a_cached_library_with_double_serves_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def library(name: str, source: str) -> str:
        asked.append(source)
        if source.startswith("#define"):
            raise build_cache.NoCompilerError
        return name

    monkeypatch.setattr(build_cache, "library", library)
    source = "#ifndef OPTGEN_WITHOUT_DOUBLE"

    assert doubles.library("any", source, doubles=False) == ("any", True)
    assert asked == [f"#define OPTGEN_WITHOUT_DOUBLE\n{source}", source]
