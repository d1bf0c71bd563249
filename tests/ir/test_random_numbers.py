"""Compare the oracle's random numbers with published ones, and the runtime's with the oracle's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from optgen.ir.random_numbers import gaussian, permuted, positions, random, random16, threefry
from optgen.runtime.eager import random_numbers
from optgen.runtime.eager.tensor_lists import TensorList

PUBLISHED = {
    # The key, the counter and the block, each as two words: "threefry2x32 13" in the file
    # kat_vectors of the authors' library Random123.
    "zeros": ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    "ones": ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0xFD36D048, 0x2D17272C)),
    "pi": ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xBA3E4725, 0xF27D669E)),
}
# The arguments seed, stream, step and call of the random functions.
ARGUMENTS = ((0, 0, 1, 0), (12345, 7, 100_000, 3), (2**24 - 1, 2**24 - 1, 2**24 - 1, 255))


@pytest.mark.parametrize("case", PUBLISHED)
def test_threefry_gives_the_published_numbers(case: str) -> None:
    key, counter, block = PUBLISHED[case]
    words = threefry(key, *(torch.tensor([c]) for c in counter))
    assert tuple(word.item() for word in words) == block


@pytest.mark.parametrize("numbers", ARGUMENTS)
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


@pytest.mark.parametrize("numbers", ARGUMENTS)
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
    kolmogorov_smirnov = (ranks - torch.linspace(0, 1, 100_000)).abs().max()
    assert kolmogorov_smirnov < 0.005
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
    near_powers = torch.tensor(
        [position for power in (31, 32, 33) for position in range(2**power - 2, 2**power + 2)]
    )
    for meaning in (random, random16):
        numbers = meaning(
            torch.cat([near_powers, torch.arange(4)]), *map(torch.tensor, (5, 6, 7, 0))
        )
        assert len(numbers.unique()) == len(numbers)


def triple32(x: int, first: int = 0, second: int = 0) -> int:
    """Return triple32 of a number under a key of two words; the key (0, 0) gives Wellons's hash."""
    x = (x + first) % 2**32
    x = (x ^ x >> 17 ^ second) * 0xED5AD4BB % 2**32
    x = (x ^ x >> 11 ^ first) * 0xAC4C1B51 % 2**32
    x = (x ^ x >> 15) * 0x31848BAB % 2**32
    return x ^ x >> 14


def test_a_word_holds_the_numbers_of_two_positions() -> None:
    """The stream's first block is the key. The key's first word changes every 2**33 positions."""
    first, second = threefry((9 | 2 << 24, 8), torch.tensor([0]), torch.tensor([7 << 8]))
    for pair in (0, 5, 2**32 - 1, 2**32, 3 * 2**32 + 5):
        pair_positions = torch.tensor([2 * pair, 2 * pair + 1])
        key = (first.item() + (pair >> 32) * 0x9E3779B9) % 2**32, second.item()
        word = triple32(pair % 2**32, *map(int, key))
        found = random16(pair_positions, *map(torch.tensor, (9, 7, 8, 2)))
        assert (found * 2**16).tolist() == [word & 0xFFFF, word >> 16]


COUNT = 2**16
SEQUENCES: dict[str, dict[str, Tensor]] = {
    # The inputs that give a sequence of words. An input that is not listed is 0.
    "positions": {"pair": torch.arange(COUNT)},
    "a column of 64": {"pair": 32 * torch.arange(COUNT)},
    "a column of 2**14": {"pair": 2**13 * torch.arange(COUNT)},
    "a column of 2**20": {"pair": 2**19 * torch.arange(COUNT)},
    "steps": {"step": torch.arange(COUNT)},
    "streams": {"stream": torch.arange(COUNT)},
    "seeds": {"seed": torch.arange(COUNT)},
    "small matrices, then steps": {
        "pair": torch.arange(COUNT) % 64,
        "stream": torch.arange(COUNT) // 64 % 16,
        "step": torch.arange(COUNT) // 1024,
    },
}
Mix = Callable[[Tensor, tuple[Tensor, Tensor]], Tensor]


def words_of(mix: Mix, sequence: dict[str, Tensor]) -> Tensor:
    """Return the words that `mix`, a function of counters and keys, gives for these inputs."""
    zeros = torch.zeros(COUNT, dtype=torch.int64)
    pair, step, stream, seed = (sequence.get(x, zeros) for x in ("pair", "step", "stream", "seed"))
    key = threefry((seed, step), zeros, stream << 8)  # type: ignore[arg-type]
    return mix(pair, key)


def first_product_of_triple32(counters: Tensor, key: tuple[Tensor, Tensor]) -> Tensor:
    """Return the value of triple32 after the first of its three products: a weak hash."""
    x = counters + key[0] & 2**32 - 1
    x = (x ^ x >> 17) * 0xED5AD4BB & 2**32 - 1
    return x ^ x >> 11 ^ key[1]


def weyl_sequence(counters: Tensor, key: tuple[Tensor, Tensor]) -> Tensor:
    return counters * 0x9E3779B9 + key[0] & 2**32 - 1


def chi_square(cells: Tensor, count: int) -> float:
    """Return the chi-square statistic of how often each of `count` cells occurs.

    The unit is the standard deviation of the statistic, and 0 is its mean.
    """
    expected = len(cells) / count
    statistic = ((torch.bincount(cells, minlength=count) - expected) ** 2 / expected).sum().item()
    degrees_of_freedom = count - 1
    return (statistic - degrees_of_freedom) / (2 * degrees_of_freedom) ** 0.5


def deviations(words: Tensor) -> dict[str, float]:
    """Return statistics of words, in standard deviations from those of random words."""
    bits = (words >> torch.arange(32)[:, None] & 1).float() * 2 - 1
    numbers = torch.stack([words & 0xFFFF, words >> 16], 1).flatten()
    found = {f"bit {k}": z for k, z in enumerate((bits.sum(1) / COUNT**0.5).tolist())}
    found |= {
        "mean": ((numbers.double() + 0.5) / 2**16 - 0.5).sum().item() / (len(numbers) / 12) ** 0.5,
        "upper digits": chi_square(numbers >> 8, 256),
        "lower digits": chi_square(numbers & 255, 256),
    }
    for lag in (1, 2, 64, 128):
        later = numbers.roll(-lag)
        pairs = (numbers.double() / 2**16 - 0.5) * (later.double() / 2**16 - 0.5)
        found[f"covariance at {lag}"] = pairs.sum().item() * 12 / len(numbers) ** 0.5
        found[f"pairs at {lag}"] = chi_square(numbers >> 12 << 4 | later >> 12, 256)
        same = (bits * bits.roll(-lag, 1)).sum(1) / COUNT**0.5
        found[f"equal bits at {lag}"] = same.abs().max().item()
    return found


def largest(found: dict[str, float]) -> float:
    """Return the largest magnitude of the statistics."""
    return max(map(abs, found.values()))


@pytest.mark.parametrize("name", SEQUENCES)
def test_numbers_of_16_bits_look_independent(name: str) -> None:
    """Every statistic of a sequence lies within five standard deviations."""
    found = deviations(words_of(permuted, SEQUENCES[name]))
    assert largest(found) < 5, found


@pytest.mark.parametrize("mix", [first_product_of_triple32, weyl_sequence])
def test_the_statistics_find_a_weak_hash(mix: Mix) -> None:
    names = ("positions", "a column of 64", "a column of 2**14", "small matrices, then steps")
    for name in names:
        assert largest(deviations(words_of(mix, SEQUENCES[name]))) > 20, name


def test_each_bit_of_counter_and_key_changes_half_of_the_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    x, first, second = torch.randint(2**32, (3, 20_000), generator=generator)
    words = permuted(x, (first, second))
    for bit in range(32):
        flip = 1 << bit
        for changed in (permuted(x ^ flip, (first, second)), permuted(x, (first, second ^ flip))):
            bits = ((words ^ changed) >> torch.arange(32)[:, None] & 1).float().mean(1)
            assert (bits - 0.5).abs().max() < 0.02  # nearly six standard deviations


def test_keys_that_differ_in_one_word_draw_different_numbers() -> None:
    generator = torch.Generator().manual_seed(2)
    changes = [0, 1, 3, 2**31, *torch.randint(2**32, (4,), generator=generator).tolist()]
    keys = [(7, 9 ^ change) for change in changes] + [(7 ^ change, 9) for change in changes[1:]]
    words = [permuted(torch.arange(COUNT), tuple(map(torch.tensor, key))) for key in keys]
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    correlation = torch.corrcoef(torch.stack(halves).double()) - torch.eye(len(halves))
    assert correlation.abs().max() < 5 / COUNT**0.5


@pytest.mark.parametrize("random", [random, random16])
def test_inputs_that_differ_draw_independent_numbers(random: Callable[..., Tensor]) -> None:
    """Random numbers are uniform, and uncorrelated as soon as one of the four inputs differs."""
    elements = torch.arange(100_000)
    base = (11, 22, 33, 0)
    drawn = [random(elements, *map(torch.tensor, base))]
    for index in range(4):
        changed = [*base]
        changed[index] += 1
        drawn.append(random(elements, *map(torch.tensor, changed)))
    stacked = torch.stack([*drawn, drawn[0].roll(1), drawn[0].roll(128)])
    correlation = torch.corrcoef(stacked) - torch.eye(len(stacked))
    assert correlation.abs().max() < 0.015
    for numbers in stacked:
        counts = torch.histc(numbers, 64, 0, 1)
        expected = len(elements) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 120  # 63 degrees of freedom
