"""Test the oracle's random numbers against published ones, and the runtime's against these."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from optgen.ir.random_numbers import gaussian, positions, random, random16, threefry
from optgen.runtime.eager import random_numbers
from optgen.runtime.eager.tensor_lists import TensorList

PUBLISHED = {
    # The key, the counter and the block: "threefry2x32 13" of the file kat_vectors in the authors'
    # library Random123.
    "zeros": ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    "ones": ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0xFD36D048, 0x2D17272C)),
    "pi": ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xBA3E4725, 0xF27D669E)),
}
SEEDS = ((0, 0, 1, 0), (12345, 7, 100_000, 3), (2**24 - 1, 2**24 - 1, 2**24 - 1, 255))


@pytest.mark.parametrize("case", PUBLISHED)
def test_threefry_gives_the_published_numbers(case: str) -> None:
    key, counter, block = PUBLISHED[case]
    words = threefry(key, *(torch.tensor([c]) for c in counter))
    assert tuple(word.item() for word in words) == block


@pytest.mark.parametrize("numbers", SEEDS)
@pytest.mark.parametrize("meaning", [random, random16])
def test_oracle_and_runtime_draw_the_same_bits(
    meaning: Callable[..., Tensor], numbers: tuple[int, int, int, int]
) -> None:
    param = torch.zeros(13, 77)
    expected = meaning(positions(param), *map(torch.tensor, numbers))
    draw = getattr(random_numbers, meaning.__name__)

    for arguments in (
        numbers,
        (*(torch.tensor(float(n)).double() for n in numbers[:3]), numbers[3]),
    ):
        found = draw([param, param], *arguments)
        assert len(found) == 2
        assert torch.equal(found[1].double(), expected)
    assert ((expected >= 0) & (expected < 1)).all()


@pytest.mark.parametrize("numbers", SEEDS)
def test_oracle_and_runtime_draw_the_same_gaussian_numbers(
    numbers: tuple[int, int, int, int],
) -> None:
    x = torch.zeros(2, 13, 3, dtype=torch.float64)
    expected = gaussian(x, *map(torch.tensor, numbers))
    for arguments in (
        numbers,
        (*(torch.tensor(float(n)).double() for n in numbers[:3]), numbers[3]),
    ):
        torch.testing.assert_close(
            random_numbers.gaussian(x, *arguments), expected, rtol=0, atol=1e-14
        )
        for found in random_numbers.gaussian(TensorList([x.float()] * 2), *arguments).tensors:
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_gaussian_numbers_are_normal_and_independent() -> None:
    drawn = gaussian(torch.zeros(100_000), *map(torch.tensor, (3, 1, 4, 1)))
    uniform = random(torch.arange(100_000), *map(torch.tensor, (3, 1, 4, 1)))
    ranks = torch.special.ndtr(drawn).sort().values
    assert (ranks - torch.linspace(0, 1, 100_000)).abs().max() < 0.005  # Kolmogorov and Smirnov
    together = torch.stack([drawn, drawn.roll(1), drawn**2, drawn.roll(7), uniform.roll(1)])
    assert (torch.corrcoef(together) - torch.eye(len(together))).abs().max() < 0.015


def test_shards_draw_the_numbers_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.zeros(5, 7, 3)
    numbers = (1, 2, 3, 0)
    (expected,) = random_numbers.random([whole], *numbers)
    for dim, start, end in ((0, 3, 5), (1, 4, 7), (2, 0, 1)):
        shard = whole.narrow(dim, start, end - start)
        axis = SimpleNamespace(
            dim=dim,
            rank=1,
            sizes=lambda n, start=start, end=end: [start, end - start],
        )
        sharded = SimpleNamespace(whole=whole, sharded_axes=(axis,))
        (found,) = random_numbers.random([shard], *numbers, sharded)  # type: ignore[arg-type]
        assert torch.equal(found, expected.narrow(dim, start, end - start))


def test_elements_beyond_32_bits_draw_different_numbers() -> None:
    near = torch.tensor(
        [place for power in (31, 32, 33) for place in range(2**power - 2, 2**power + 2)]
    )
    for meaning in (random, random16):
        numbers = meaning(torch.cat([near, torch.arange(4)]), *map(torch.tensor, (5, 6, 7, 0)))
        assert len(numbers.unique()) == len(numbers)


def test_four_elements_share_one_block() -> None:
    """Elements n and n + 1 have the halves of one word, n + 128 and n + 129 those of the other."""
    key = 9 | 2 << 24, 8
    x, y = threefry(key, torch.tensor([64 + 5]), torch.tensor([7 << 8]))
    first = 256 + 2 * 5
    elements = torch.tensor([first, first + 1, first + 128, first + 129])
    found = random16(elements, *map(torch.tensor, (9, 7, 8, 2)))
    halves = [half for word in (x, y) for half in (word & 0xFFFF, word >> 16)]
    assert torch.equal(found, torch.cat(halves).double() / 2**16)


@pytest.mark.parametrize("random", [random, random16])
def test_streams_are_independent(random: Callable[..., Tensor]) -> None:
    """Numbers that differ in one input only are uncorrelated, and uniform."""
    elements = torch.arange(100_000)
    base = (11, 22, 33, 0)
    drawn = [random(elements, *map(torch.tensor, base))]
    for place in range(4):
        changed = [*base]
        changed[place] += 1
        drawn.append(random(elements, *map(torch.tensor, changed)))
    stacked = torch.stack([*drawn, drawn[0].roll(1), drawn[0].roll(128)])
    correlation = torch.corrcoef(stacked) - torch.eye(len(stacked))
    assert correlation.abs().max() < 0.015
    for numbers in stacked:
        counts = torch.histc(numbers, 64, 0, 1)
        expected = len(elements) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 120  # 63 degrees of freedom
