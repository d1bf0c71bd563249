"""Test the generator of random numbers against published answers, and its two forms."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from optgen.ir.random_numbers import places, random, threefry
from optgen.runtime.eager import random_numbers

PUBLISHED = {
    # The key, the counter and the first word of the block: "threefry2x32 20" of the file
    # kat_vectors in the authors' library Random123.
    "zeros": ((0, 0), (0, 0), 0x6B200159),
    "ones": ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), 0x1CB996FC),
    "digits of pi": ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), 0xC4923A9C),
}
SEEDS = ((0, 0, 1, 0), (12345, 7, 100_000, 3), (2**24 - 1, 2**24 - 1, 2**24 - 1, 255))


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_answers(case: str) -> None:
    key, counter, word = PUBLISHED[case]
    first, _ = threefry(key, *(torch.tensor([c]) for c in counter))
    assert first.item() == word


@pytest.mark.parametrize("numbers", SEEDS)
def test_both_forms_draw_the_same_bits(numbers: tuple[int, int, int, int]) -> None:
    param = torch.zeros(13, 77)
    expected = random(places(param), *map(torch.tensor, numbers))

    for given in (numbers, (*(torch.tensor(float(n)).double() for n in numbers[:3]), numbers[3])):
        found = random_numbers.random([param, param], *given)
        assert len(found) == 2
        assert torch.equal(found[1].double(), expected)
    assert ((expected >= 0) & (expected < 1)).all()


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


def test_places_beyond_32_bits() -> None:
    near = torch.tensor([2**32 - 1, 2**32, 2**32 + 1, 0, 1])
    numbers = random(near, *map(torch.tensor, (5, 6, 7, 0)))
    assert len(numbers.unique()) == 5


def test_streams_are_independent() -> None:
    """Numbers that differ in one input only are uncorrelated, and uniform."""
    elements = torch.arange(100_000)
    base = (11, 22, 33, 0)
    drawn = [random(elements, *map(torch.tensor, base))]
    for place in range(4):
        changed = [*base]
        changed[place] += 1
        drawn.append(random(elements, *map(torch.tensor, changed)))
    stacked = torch.stack([*drawn, drawn[0].roll(1)])
    correlation = torch.corrcoef(stacked) - torch.eye(len(stacked))
    assert correlation.abs().max() < 0.015
    for numbers in stacked:
        counts = torch.histc(numbers, 64, 0, 1)
        expected = len(elements) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 120  # 63 degrees of freedom
