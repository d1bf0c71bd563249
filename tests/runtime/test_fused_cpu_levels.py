"""Kernels for the types that a model has, and what happens when tensors of others come."""

import sys

import pytest
import torch
from torch import Tensor

from optgen import use_lowering
from optgen.optim import SGD, Adafactor, Muon
from optgen.runtime import fused_cpu
from optgen.runtime.fused_cpu import build_cache, levels
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.table import CODES

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


def known() -> set[torch.dtype]:
    """The types that the kernel in use was built for."""
    kernel = fused_cpu._kernel(Adafactor)
    assert isinstance(kernel, Kernel)
    return {dtype for dtype in CODES if kernel.types & levels.of_dtypes([dtype])}


@pytest.mark.parametrize(
    ("dtype", "types"),
    [
        (torch.float32, {torch.float32}),
        (torch.bfloat16, {torch.float32, torch.bfloat16, torch.float16}),
        (torch.float64, {torch.float32, torch.float64}),
    ],
)
def test_it_is_built_for_what_there_is(dtype: torch.dtype, types: set[torch.dtype]) -> None:
    with use_lowering("fused_cpu"):
        Adafactor(parameters(dtype)).step()

    assert known() == types


def test_groups_of_several_types_share_a_library() -> None:
    groups = [{"params": parameters(dtype)} for dtype in (torch.float32, torch.bfloat16)]
    with use_lowering("fused_cpu"):
        Adafactor(groups).step()

    assert len(fused_cpu._kernels[sys.modules[Adafactor.lowerings]]) == 1


def test_a_double_that_comes_later_is_computed_with_in_double() -> None:
    """The kernel without would take its memory for floats."""
    params, expected = parameters(torch.float32), parameters(torch.float32)
    optimizer, reference = Adafactor(params), torch.optim.Adafactor(expected)
    with use_lowering("fused_cpu"):
        for _ in range(2):
            optimizer.step()
            reference.step()
        assert torch.float64 not in known()
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

    assert torch.float64 in known()
    for param, other in zip(params, expected, strict=True):
        torch.testing.assert_close(param, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16])
def test_both_types_in_one_step(other: torch.dtype) -> None:
    """What is of float32 keeps the bits it has in a model without any other type."""
    alone, mixed = parameters(torch.float32), parameters(torch.float32, other)
    with use_lowering("fused_cpu"):
        for params in (alone, mixed):
            optimizer = Adafactor(params)
            for _ in range(3):
                optimizer.step()

    assert all(map(torch.equal, alone, mixed))


def test_a_rule_of_one_sweep_has_one_library() -> None:
    with use_lowering("fused_cpu"):
        SGD(parameters(torch.float32)).step()
        first = fused_cpu._kernel(SGD)
        SGD(parameters(torch.float64)).step()

    assert isinstance(first, Kernel)
    assert fused_cpu._kernel(SGD, levels.ALL) is first


def test_a_cached_library_that_knows_more_serves_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def library(name: str, source: str) -> str:
        asked.append(source)
        if f" {levels.ALL}\n" not in source:
            raise build_cache.NoCompilerError
        return name

    monkeypatch.setattr(build_cache, "library", library)
    source = "#ifdef OPTGEN_TYPES"

    assert levels.library("any", source, levels.of_dtypes([torch.float32])) == ("any", levels.ALL)
    assert len(asked) == 4


def test_what_matrix_words_make_is_known() -> None:
    """They make bfloat16, whatever they take."""
    with use_lowering("fused_cpu"):
        Muon(parameters(torch.float32)[:1]).step()
    kernel = fused_cpu._kernel(Muon)

    assert isinstance(kernel, Kernel)
    assert kernel.types & levels.of_dtypes([torch.bfloat16])
