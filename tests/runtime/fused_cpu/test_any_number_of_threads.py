"""Test that any number of threads gives the same bits, for every algorithm and dtype."""

import functools
from collections.abc import Iterator
from threading import Thread

import pytest
import torch
from parity.classes import DENSE_CLASSES
from torch import Tensor
from torch.nn import Parameter

import optgen.optim
from optgen.runtime.torch_private import thread_pool

# Steps use several threads from 16 MB on. With these sizes, a thread begins inside a tensor.
SIZES = (1_900_003, 17, 900_001, 128, 1_600_063)


@functools.cache
def values(step: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(n, generator=generator).to(dtype) for n in SIZES]


@pytest.fixture
def restore_threads() -> Iterator[None]:
    old_count = torch.get_num_threads()
    yield
    torch.set_num_threads(old_count)


@pytest.fixture(scope="module", autouse=True)
def free_values() -> Iterator[None]:
    yield
    values.cache_clear()


def tensors_after_steps(name: str, dtype: torch.dtype, count: int) -> list[Tensor]:
    """Return parameters and states after two steps with `count` threads."""
    torch.set_num_threads(count)
    assert thread_pool().parallel
    assert thread_pool().count == count
    params = [Parameter(value.clone()) for value in values(0, dtype)]
    optimizer = getattr(optgen.optim, name)(params)
    for step in (1, 2):
        for param, grad in zip(params, values(step, dtype), strict=True):
            param.grad = grad
        optimizer.step()
    assert optgen.explain(optimizer).startswith("group 0: fused C++")
    return [*params, *(s for p in params for s in optimizer.state[p].values())]


@pytest.mark.one_case_in(2)
@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DENSE_CLASSES)
def test_any_number_of_threads_gives_the_same_bits(name: str, dtype: torch.dtype) -> None:
    expected = tensors_after_steps(name, dtype, 1)

    for count in (2, 3):
        found = tensors_after_steps(name, dtype, count)
        assert all(map(torch.equal, found, expected))


@pytest.mark.usefixtures("restore_threads")
def test_a_kernel_keeps_its_count_while_another_thread_asks_for_more() -> None:
    """torch has a count for each Python thread; a kernel's memory is made for its count."""
    torch.set_num_threads(1)
    mine = thread_pool()
    counts: list[int] = []

    def ask_for_more() -> None:
        torch.set_num_threads(3)
        counts.append(thread_pool().count)

    other = Thread(target=ask_for_more)
    other.start()
    other.join()

    assert counts == [3]
    assert mine.count == thread_pool().count == 1
