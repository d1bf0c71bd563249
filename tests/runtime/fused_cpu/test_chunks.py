"""Test tensors that a kernel cannot update in place: they are copied chunk by chunk."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from optgen.optim import SGD, Adafactor, Adam, Muon
from optgen.runtime import newton_schulz
from optgen.runtime.fused_cpu import gathered_step
from optgen.runtime.fused_cpu.fill_table import fill_table

Copies = list[list[int]]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Return a list to which each chunk appends the sizes of its copied tensors, in elements.

    A chunk has at most ten elements, or one tensor.
    """
    sizes: Copies = []

    def record_and_fill(
        kernel: Any, batches: Any, unscales: bool, make_copies: bool = False
    ) -> Any:
        if make_copies:
            sizes.append([param.numel() for batch in batches for param in batch.params])
        return fill_table(kernel, batches, unscales, make_copies)

    monkeypatch.setattr(gathered_step, "_CHUNK_ELEMENTS", 10)
    monkeypatch.setattr(gathered_step, "fill_table", record_and_fill)
    return sizes


def transposed_gradient(like: Tensor) -> Tensor:
    return torch.randn(*like.T.shape, dtype=like.dtype).T


def negated_gradient(like: Tensor) -> Tensor:
    return torch._neg_view(torch.randn_like(like))


@pytest.mark.parametrize("make_gradient", [transposed_gradient, negated_gradient])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "amsgrad": True}])
def test_a_few_tensors_are_copied_at_a_time(
    options: dict[str, Any], make_gradient: Callable[[Tensor], Tensor], copies: Copies
) -> None:
    """The third gradient has its parameter's strides, so it is not copied."""
    torch.manual_seed(0)
    starts = [torch.randn(2, n, dtype=torch.float64) for n in (2, 3, 2, 3, 30, 2)]
    grads = [make_gradient(start) for start in starts]
    grads[2] = torch.randn_like(starts[2])
    results = []
    for cls in (Adam, torch.optim.Adam):
        params = [Parameter(start.clone()) for start in starts]
        optimizer = cls([{"params": params[:4]}, {"params": params[4:], "lr": 0.1}], **options)
        for _ in range(3):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            optimizer.step()
        results.append(params)

    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert copies == [[4, 6], [6], [60], [4]] * 3


@pytest.mark.parametrize("key", ["param", "exp_avg"])
def test_a_parameter_or_state_that_is_a_negative_view_is_copied(key: str, copies: Copies) -> None:
    """The memory of a negative view holds the opposite of the tensor's values."""
    torch.manual_seed(0)
    start, grad = torch.randn(2, 3, 7, dtype=torch.float64)
    results = []
    for negate in (Tensor.clone, lambda tensor: torch._neg_view(-tensor)):
        param = Parameter(start.clone())
        param.grad = grad
        optimizer = Adam([param])
        optimizer.step()
        if key == "param":
            param.data = negate(param.data)
        else:
            optimizer.state[param][key] = negate(optimizer.state[param][key])
        optimizer.step()
        results.append(param.detach().clone())

    torch.testing.assert_close(*results, rtol=1e-14, atol=1e-14)
    assert copies == [[21]]


def test_changes_of_a_copy_are_written_back(copies: Copies) -> None:
    """A rule with matrices copies parameters whose memory order is not that of their indices."""
    torch.manual_seed(0)
    starts = [torch.randn(2, 3, 2, n, dtype=torch.float64) for n in (1, 2, 3)]
    contiguous = [Parameter(start.clone()) for start in starts]
    channels_last = [Parameter(start.to(memory_format=torch.channels_last)) for start in starts]
    for params in (contiguous, channels_last):
        torch.manual_seed(1)
        optimizer = Adafactor(params)
        for _ in range(2):
            for param in params:
                param.grad = torch.randn_like(param.detach().contiguous()).contiguous()
            optimizer.step()

    for param, expected in zip(channels_last, contiguous, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-14, atol=1e-14)
    assert copies == [[12], [24], [36]] * 2


def test_a_scaled_gradient_is_unscaled_in_its_memory(copies: Copies) -> None:
    param = Parameter(torch.zeros(2, 3))
    param.grad = torch.full((3, 2), 8.0).T
    optimizer = SGD([param], lr=1.0, fused=True)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)  # type: ignore[attr-defined]
    optimizer.step()

    assert param.grad.tolist() == [[2.0] * 3] * 2
    assert param.tolist() == [[-2.0] * 3] * 2
    assert copies == [[6]]


def test_operands_of_matrix_ops_exist_for_a_few_tensors_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks have the same bits, if each matrix is computed alone."""
    sizes: list[list[int]] = []

    def record_and_fill(kernel: Any, batches: Any, *options: bool) -> Any:
        sizes.append([param.numel() for batch in batches for param in batch.params])
        return fill_table(kernel, batches, *options)

    monkeypatch.setattr(gathered_step, "fill_table", record_and_fill)
    results = []
    for limit in (1000, 10):
        monkeypatch.setattr(gathered_step, "_MATRIX_CHUNK_ELEMENTS", limit)
        torch.manual_seed(0)
        params = [Parameter(torch.randn(2, n)) for n in (2, 3, 2, 3, 30, 2)]
        optimizer = Muon([{"params": params[:4]}, {"params": params[4:], "lr": 0.1}])
        for _ in range(3):
            for param in params:
                param.grad = torch.randn_like(param)
            with newton_schulz.force_way("whole"):
                optimizer.step()
        momenta = [optimizer.state[param]["momentum_buffer"] for param in params]
        results.append([*(param.detach() for param in params), *momenta])
    assert all(map(torch.equal, *results))
    assert sizes[-4:] == [[4, 6], [4, 6], [60], [4]]
    assert [4, 6, 4, 6, 60, 4] in sizes
