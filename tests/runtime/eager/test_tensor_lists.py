"""Test that an operation on a list of tensors gives what it gives on each tensor alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowerings.capture import capture_on_cpu
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import optgen.optim
from optgen.runtime.eager import scalars
from optgen.runtime.eager.parts import CHUNK_ELEMENTS, whole_chunks
from optgen.runtime.eager.tensor_lists import TensorList

SHAPES = [(3,), (), (2, 2)]
NUMBERS = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)


def random_tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(s, dtype=torch.float64, generator=generator) + 0.5 for s in SHAPES]


OPERATIONS: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, y, n: x + y - 2 * x / y,
    lambda x, y, n: n * x + x * n + (n + x) + (x + n),
    lambda x, y, n: (n - x) - (x - n) + (1 - x) - (x - 1),
    lambda x, y, n: n / x + x / n + 1 / x + x / 2,
    lambda x, y, n: x**2 + x**n + n**x + 2**x,
    lambda x, y, n: -abs(x - y) + x % n + x % 0.3,
    lambda x, y, n: scalars.sqrt(x) + scalars.exp(y) - scalars.log(x) + scalars.sign(x - y),
    lambda x, y, n: scalars.tanh(x) + scalars.sin(y) - scalars.cos(x) + scalars.floor(3 * x),
    lambda x, y, n: scalars.ceil(3 * x) + scalars.round(3 * y) + scalars.floor(n) * x,
    lambda x, y, n: scalars.atan2(x, y) + scalars.atan2(x, n) + scalars.atan2(1.0, y),
    lambda x, y, n: scalars.maximum(x, y) + scalars.maximum(x, 1.0) + scalars.maximum(n, y),
    lambda x, y, n: scalars.minimum(x, y) + scalars.minimum(1.0, x) + scalars.clamp(x, 0.7, n),
    lambda x, y, n: scalars.lerp(x, y, 0.25) + scalars.lerp(x, y, n),
    lambda x, y, n: scalars.where(x > y, x, y) + scalars.where(n > 1, x, y) + (x <= n) * x,
    lambda x, y, n: scalars.where(x < 1, x, 0.0) + scalars.where(x >= 1, 2.0, 3.0),
    lambda x, y, n: scalars.where(scalars.both(x > y, n > 1), x, y),
    lambda x, y, n: scalars.where(scalars.either(n > 1, x != y), x, y) + x * 1.0,
    lambda x, y, n: scalars.where(scalars.opposite(x == y), x, y),
    lambda x, y, n: x + torch.full((), 3.0) * x / torch.full((), 2.0) - torch.full((), 1.0),
    lambda x, y, n: torch.sum(x * y) + torch.linalg.vector_norm(y),
    lambda x, y, n: x.clone() * y,
]


@pytest.mark.parametrize("index", range(len(OPERATIONS)))
def test_an_operation_on_a_list_equals_that_on_each_tensor(index: int) -> None:
    x, y = random_tensors(1), random_tensors(2)

    found = OPERATIONS[index](TensorList(x), TensorList(y), NUMBERS)

    expected = [OPERATIONS[index](*row) for row in zip(x, y, NUMBERS, strict=True)]
    for a, b in zip(found.tensors, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


def test_a_clone_has_memory_of_its_own() -> None:
    x = random_tensors(1)
    copies = TensorList(x).clone()
    x[0].zero_()

    assert (copies.tensors[0] > 0).all()


def test_scalar_states_are_read_and_written_as_a_vector() -> None:
    counts = TensorList([torch.tensor(1.0), torch.tensor(4.0)])

    numbers = scalars.advance_one(counts, capturable=True)
    assert isinstance(numbers, Tensor)
    assert (numbers.tolist(), numbers.dtype) == ([2.0, 5.0], torch.float64)

    stored = scalars.store_one(counts, counts * numbers, capturable=True)
    assert isinstance(stored, Tensor)
    assert stored.tolist() == [4.0, 25.0] == [count.item() for count in counts.tensors]
    scalars.store_one(counts, 7.0, capturable=True)


def test_chunks_are_small_and_split_no_parameter() -> None:
    sizes = [CHUNK_ELEMENTS // 2, CHUNK_ELEMENTS // 2, 3, 2 * CHUNK_ELEMENTS, 1, 1]
    params = [torch.empty(size, device="meta") for size in sizes]

    parts = list(whole_chunks([params, params, []]))

    assert [[t.numel() for t in part[0][0].tensors] for part in parts] == [
        sizes[:2],
        sizes[2:3],
        sizes[3:4],
        sizes[4:],
    ]
    assert [part[2] for part in parts] == [[]] * 4


class OperationCounter(TorchDispatchMode):
    """Count the operations that torch dispatches."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **kwargs or {})


@pytest.mark.skipif(
    not hasattr(torch, "_foreach_clone"), reason="torch before 2.12 copies tensors one by one"
)
def test_a_captured_step_makes_as_many_calls_for_two_tensors_as_for_forty() -> None:
    calls = []
    for count in (2, 40):
        params = [torch.nn.Parameter(torch.ones(3)) for _ in range(count)]
        optimizer = optgen.optim.Adam(params, capturable=True, amsgrad=True, weight_decay=0.1)
        for param in params:
            param.grad = torch.ones(3)
        with capture_on_cpu():
            optimizer.step()
            with OperationCounter() as counter:
                optimizer.step()
        calls.append(counter.calls)

    assert calls[0] == calls[1] < 60
