"""Test that a repeated call of a function over lists makes no batch, and sees every change."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from torch import Tensor

from optgen import use_lowering
from optgen.generated.averaging.ema import ema
from optgen.runtime.elementwise import Elementwise

pytest.importorskip("triton")


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


class Batches:
    """Counts the calls that make a batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        make_batch = Elementwise._make_batch

        def count(*args: Any) -> Any:
            self.count += 1
            return make_batch(*args)

        monkeypatch.setattr(Elementwise, "_make_batch", count)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    return Batches(monkeypatch)


def draw(*shapes: Sequence[int]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def check(means: list[Tensor], tensors: list[Tensor], decay: Any = 0.9) -> None:
    """Call the function once, and compare with torch."""
    weight = 1 - float(decay)
    pairs = zip(means, tensors, strict=True)
    expected = [mean + (tensor.to(mean.dtype) - mean) * weight for mean, tensor in pairs]
    with use_lowering("fused_triton"):
        ema(means, tensors, decay=decay)
    for mean, value in zip(means, expected, strict=True):
        torch.testing.assert_close(mean, value, rtol=1e-13, atol=1e-13)


@inside_interpreter
def test_shapes_take_turns_and_no_later_call_makes_a_batch(batches: Batches) -> None:
    lists = [(draw((n, 3), (n,)), draw((n, 3), (n,))) for n in range(1, 9)]
    for number in range(3):
        for means, tensors in lists:
            check(means, tensors, decay=0.9 - 0.1 * number)
            tensors[0] = tensors[0] + 1  # at another address
        if number == 0:
            batches.count = 0
    assert batches.count == 0


@inside_interpreter
def test_a_value_of_zero_keeps_its_sign() -> None:
    """The numbers 0.0 and -0.0 are equal, but not the same."""
    for decay in (0.0, -0.0, 0.0):
        mean, tensor = [torch.ones(2, dtype=torch.float64)], [-torch.zeros(2, dtype=torch.float64)]
        check(mean, tensor, decay)


@inside_interpreter
def test_a_tensor_may_change_its_value_between_calls(batches: Batches) -> None:
    (mean,), (tensor,) = draw((700,)), draw((700,))
    decay = torch.tensor(0.5, dtype=torch.float64)
    for _ in range(3):
        check([mean], [tensor], decay)
        decay.mul_(0.5)
    assert batches.count <= 1


@inside_interpreter
def test_other_dtypes_and_layouts_are_seen() -> None:
    """Each call has lists of one length, which the call before may have had in another form."""
    (mean,), (tensor,) = draw((6, 4)), draw((6, 4))
    strided = torch.randn(12, 8, dtype=torch.float64)[::2, ::2]
    for first, second in (
        (mean, tensor),
        (mean.mT, tensor.mT),
        (mean, tensor.float()),
        (mean.float(), tensor),
        (strided, tensor),
        (mean, tensor.mT.contiguous().mT),
        (mean, tensor),
    ):
        for _ in range(2):
            if first.dtype == torch.float32:
                with use_lowering("fused_triton"):
                    ema([first], [second], decay=0.5)
                assert first.isfinite().all()
            else:
                check([first], [second])


@inside_interpreter
def test_a_tensor_that_is_listed_twice_is_updated_twice() -> None:
    means, tensors = draw((5,), (5,)), draw((5,), (5,))
    check(means, tensors)
    (twice, _), expected = means, means[0].clone()
    for tensor in tensors:
        expected += (tensor - expected) * 0.5
    ema([twice, twice], tensors, decay=0.5)
    torch.testing.assert_close(twice, expected)


@inside_interpreter
def test_a_call_obeys_the_lowering_that_is_forced(batches: Batches) -> None:
    means, tensors = draw((5,)), draw((5,))
    check(means, tensors)
    before = batches.count
    with use_lowering("foreach"):
        ema(means, tensors, decay=0.5)
    assert batches.count == before + 1


@inside_interpreter
def test_threads_do_not_mix_their_lists() -> None:
    """All use the plan of one shape, whose table holds the addresses of one call."""
    errors = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        tensor = torch.randn(50, generator=generator, dtype=torch.float64)
        mean, expected = tensor * 0, tensor * 0
        for _ in range(8):
            with use_lowering("fused_triton"):
                ema([mean], [tensor], decay=0.5)
            expected += (tensor - expected) * 0.5
        errors.append((mean - expected).abs().max().item())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(errors) < 1e-14
