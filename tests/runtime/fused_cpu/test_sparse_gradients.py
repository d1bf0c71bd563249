"""Test sparse gradients in fused C++: rows of any width and dtype, any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import use_lowering
from optgen.optim import SGD, Adagrad, SparseAdam
from optgen.runtime.batch import sparse_rows
from optgen.runtime.fused_cpu import gathered_step, kernel_loader, sparse_gradients
from optgen.runtime.toolchain import library_cache

Size = tuple[int, ...]


@pytest.fixture(autouse=True)
def no_rows_gathered_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if Python gathers the touched rows of a fused step."""

    def refuse(*args: object) -> None:
        raise AssertionError("gathered in Python")

    monkeypatch.setattr(gathered_step, "gather_rows", refuse)


def gradient(size: Size, count: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a sparse gradient; its rows are drawn with replacement and are not sorted."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, size[0], (1, count), generator=generator)
    values = torch.randn(count, *size[1:], generator=generator, dtype=torch.float64)
    return torch.sparse_coo_tensor(rows, values.to(dtype), size, check_invariants=True)


def tensors_after_steps(
    size: Size, lowering: str, dtype: torch.dtype = torch.float64, count: int = 40
) -> list[Tensor]:
    """Return a parameter and its states after some steps."""
    start = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    param = torch.nn.Parameter(start.to(dtype))
    optimizer = SparseAdam([param], lr=0.1)
    with use_lowering(lowering):
        for seed in range(4):
            param.grad = gradient(size, count, seed, dtype)
            optimizer.step()
    state = optimizer.state[param]
    return [param.detach(), state["exp_avg"], state["exp_avg_sq"]]


SIZES: list[Size] = [(30,), (30, 1), (30, 3), (30, 15), (30, 16), (30, 4, 5), (30, 700), (30, 0)]


@pytest.mark.parametrize("size", [*SIZES, (1, 3), (5 * 10**6,)], ids=str)
def test_rows_of_any_width_and_number_agree_with_the_for_loop(size: Size) -> None:
    ours, reference = tensors_after_steps(size, "fused_cpu"), tensors_after_steps(size, "forloop")

    for found, expected in zip(ours, reference, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_rows_whose_numbers_share_leading_or_trailing_bits_are_distinguished() -> None:
    """Rows repeat, unsorted; each pass of the radix sort looks at eleven bits of a row number."""
    numbers = torch.tensor([0, 1, 2**11, 2**11 + 1, 2**22, 2**22 + 1, 2**22 + 2**11, 5 * 10**6 - 1])
    drawn = torch.randint(0, len(numbers), (200,), generator=torch.Generator().manual_seed(0))
    values = torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    finals = []
    for lowering in ("fused_cpu", "forloop"):
        param = torch.nn.Parameter(torch.zeros(5 * 10**6, dtype=torch.float64))
        param.grad = torch.sparse_coo_tensor(
            numbers[drawn][None], values, param.shape, check_invariants=True
        )
        with use_lowering(lowering):
            SGD([param], lr=1.0).step()
        finals.append(param.detach())

    torch.testing.assert_close(finals[0], finals[1], rtol=1e-12, atol=1e-13)
    assert torch.equal(finals[0].nonzero().flatten(), numbers)


@pytest.mark.parametrize("size", [(30, 3), (30, 64), (30, 700)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrower_dtypes_are_computed_in_float32(dtype: torch.dtype, size: Size) -> None:
    """Fused C++ adds up a row's values unrounded, so it is at least as exact as the for-loop."""
    start = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    finals = {}
    for name, value_dtype in (("fused_cpu", dtype), ("forloop", dtype), ("exact", torch.float64)):
        param = torch.nn.Parameter(start.to(value_dtype, copy=True))
        param.grad = gradient(size, 60, 5, dtype).to(value_dtype)
        with use_lowering("forloop" if name == "exact" else name):
            SGD([param], lr=0.1).step()
        finals[name] = param.detach().double()

    errors = {name: (final - finals["exact"]).abs().max() for name, final in finals.items()}
    assert errors["fused_cpu"] <= max(errors["forloop"], 1e-7)


@pytest.fixture
def restore_thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("restore_thread_count")
@pytest.mark.parametrize("size", [(5000, 48), (500_000, 2)], ids=str)
def test_results_have_the_same_bits_for_any_number_of_threads(size: Size) -> None:
    """There are enough values for several threads; most rows have more than one value."""
    count, finals = 2_000_000 // size[1] // 2, []
    for thread_count in (1, 2, 3):
        torch.set_num_threads(thread_count)
        finals.append(tensors_after_steps(size, "fused_cpu", torch.float32, count))

    for other in finals[1:]:
        assert all(map(torch.equal, other, finals[0]))


def test_sparse_and_dense_gradients_may_share_an_optimizer() -> None:
    finals = []
    for lowering in ("fused_cpu", "forloop"):
        sizes: list[Size] = [(30, 3), (7, 20), (30,), (30, 3)]
        params = [torch.nn.Parameter(torch.ones(s, dtype=torch.float64)) for s in sizes]
        optimizer = Adagrad([{"params": params[:2]}, {"params": params[2:], "lr": 0.5}])
        for seed in range(3):
            count = 0 if seed == 1 else 10
            for param, size in zip(params[:3], sizes[:3], strict=True):
                param.grad = gradient(size, count, seed)
            params[3].grad = torch.full(sizes[3], seed - 0.5, dtype=torch.float64)
            with use_lowering(lowering):
                optimizer.step()
        assert [optimizer.state[param]["step"].item() for param in params] == [3] * 4
        finals.append([param.detach() for param in params])

    for found, expected in zip(*finals, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("row", [-1, 6])
def test_a_row_index_out_of_range_raises_and_changes_nothing(row: int) -> None:
    params = [torch.nn.Parameter(torch.ones(size)) for size in ((3, 2), (6, 2))]
    optimizer = Adagrad(params)
    params[0].grad = gradient((3, 2), 2, 0, torch.float32)
    rows = torch.tensor([[2, row, 1]])
    params[1].grad = torch.sparse_coo_tensor(rows, torch.ones(3, 2), (6, 2), check_invariants=False)

    with pytest.raises(
        IndexError, match=r"names rows -?\d to \d of a parameter that has rows 0 to 5"
    ):
        optimizer.step()

    assert [(param == 1).all().item() for param in params] == [True, True]
    assert [state["step"].item() for state in optimizer.state.values()] == [0, 0]


def test_without_the_library_that_sorts_rows_python_gathers_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel may be cached while no compiler can build the library that sorts rows."""
    expected = tensors_after_steps((30, 3), "forloop")
    calls: list[object] = []

    def fail_to_build(name: str, source: str) -> Path:
        raise library_cache.NoCompilerError(name)

    def gather_and_record(*args: Any) -> sparse_rows.TouchedRows:
        calls.append(args)
        return sparse_rows.gather_rows(*args)

    assert not isinstance(kernel_loader.kernel_or_reason(SparseAdam), str)
    monkeypatch.setattr(library_cache, "library", fail_to_build)
    monkeypatch.setattr(gathered_step, "gather_rows", gather_and_record)
    monkeypatch.setattr(sparse_gradients, "_functions", {})
    found = tensors_after_steps((30, 3), "fused_cpu")

    assert len(calls) == 4
    for tensor, expected_tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor, rtol=1e-12, atol=1e-13)


def test_a_gradient_scaler_unscales_or_skips_a_step() -> None:
    finals, size = [], (30, 3)
    for scale, found_inf in ((None, None), (4.0, 0.0), (4.0, 1.0)):
        param = torch.nn.Parameter(torch.ones(size, dtype=torch.float64))
        optimizer = SparseAdam([param], fused=True)
        param.grad = gradient(size, 20, 0) * (scale or 1)
        if scale is not None:
            optimizer.grad_scale, optimizer.found_inf = map(torch.tensor, (scale, found_inf))
        optimizer.step()
        finals.append(param.detach())
        assert optimizer.state[param]["step"] == (0 if found_inf else 1)

    assert torch.equal(finals[1], finals[0])
    assert torch.equal(finals[2], torch.ones_like(finals[2]))


def test_autograd_notices_a_step() -> None:
    param = torch.nn.Parameter(torch.ones(6, 3))
    square = param * param
    param.grad = gradient((6, 3), 2, 0, torch.float32)
    SparseAdam([param]).step()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


@pytest.mark.parametrize("lowering", ["forloop", "fused_cpu"])
@pytest.mark.parametrize("cls", [SparseAdam, SGD])
def test_a_complex_gradient_of_a_real_parameter_is_an_error(cls: Any, lowering: str) -> None:
    param = torch.nn.Parameter(torch.ones(6, 10))
    optimizer = cls([param])
    for step in range(4):
        param.grad = torch.ones(6, 10).to_sparse(1)
        if step < 3:
            optimizer.step()
    param.grad.data = param.grad.to(torch.complex64)

    with (
        use_lowering(lowering),
        pytest.raises(RuntimeError, match="a gradient is complex, but its parameter is real"),
    ):
        optimizer.step()
