"""Test which buckets are kept: for each stream, and for sets of gradients that come and go."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from torch import Tensor

import optgen.optim
from optgen import use_lowering
from optgen.runtime.backends import backend
from optgen.runtime.fused_triton import sort_into_buckets, table
from optgen.runtime.fused_triton.sort_into_buckets import KeptBuckets

pytest.importorskip("triton")


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


class Buckets:
    """The buckets of a step as `KeptBuckets` sees them."""

    def __init__(self, *streams: int, device_bytes: int = 0) -> None:
        self.streams, self.device_bytes = tuple(enumerate(streams)), device_bytes

    def is_for_current_streams(self) -> bool:
        return True


@outside_interpreter
def test_a_few_buckets_are_kept_for_each_set_of_streams() -> None:
    kept: Any = KeptBuckets()
    found = [Buckets(index % 2) for index in range(12)]
    for step_buckets in found:
        kept.add(step_buckets)
    assert kept._kept == found[:3:-1]
    kept.add(found[4])  # used again: it becomes the latest
    kept.add(Buckets(0))
    assert found[4] in kept._kept
    assert found[6] not in kept._kept
    for stream in range(30):
        kept.add(Buckets(stream))
    assert len(kept._kept) == 16


@outside_interpreter
def test_buckets_with_much_memory_are_dropped() -> None:
    kept: Any = KeptBuckets()
    small, large, latest = Buckets(0, device_bytes=9), Buckets(0, device_bytes=1 << 27), Buckets(0)
    kept.add(small)
    kept.add(large)
    assert kept._kept == [large, small]
    kept.add(latest)
    assert kept._kept == [latest]


@inside_interpreter
def test_a_cached_step_drops_the_buckets_that_are_no_longer_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sort_into_buckets, "_MAX_BYTES", 0)
    param, other = (torch.ones(5, requires_grad=True) for _ in "ab")
    optimizer = optgen.optim.Adafactor([param, other])
    with use_lowering("fused_triton"):
        for step in range(6):
            param.grad = torch.ones(5)
            other.grad = torch.ones(5) if step % 2 else None
            optimizer.step()
            cached: Any = optimizer._context.cached_step
            assert len(cached._planned) == 1


@pytest.fixture
def select_stream(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes a stream of a CUDA device current, as far as buckets can see."""
    current = [0]
    monkeypatch.setattr(sort_into_buckets, "current_streams", lambda devices: ((0, current[0]),))

    def select(stream: int) -> None:
        current[0] = stream

    return select


def tables(found: KeptBuckets) -> list[int]:
    """Return the addresses of the tables on the device, the latest step first."""
    return [
        bucket.table.data_ptr() for step_buckets in found._kept for bucket in step_buckets.buckets
    ]


@inside_interpreter
def test_a_function_has_a_table_for_each_stream(select_stream: Callable[[int], None]) -> None:
    """Nothing orders the uploads of two streams, so they may not share a table."""
    from optgen.generated.averaging import ema

    x, y, ones = torch.zeros(5), torch.zeros(5), torch.ones(5)
    backend("fused_triton")._function_buckets.clear()
    with use_lowering("fused_triton"):
        for stream, average in ((1, x), (2, y), (1, y)):
            select_stream(stream)
            ema.ema([average], [ones], decay=0.5)
    (found,) = backend("fused_triton")._function_buckets.values()

    assert len(set(tables(found))) == 2
    assert sorted(step_buckets.streams for step_buckets in found._kept) == [((0, 1),), ((0, 2),)]
    assert (x.tolist(), y.tolist()) == ([0.5] * 5, [0.75] * 5)


@inside_interpreter
def test_an_optimizer_has_a_table_for_each_stream(select_stream: Callable[[int], None]) -> None:
    param = torch.zeros(5, requires_grad=True)
    optimizer = optgen.optim.SGD([param], lr=1.0)
    with use_lowering("fused_triton"):
        for stream in (1, 2, 1):
            select_stream(stream)
            param.grad = torch.ones(5)
            optimizer.step()
    found = backend("fused_triton")._kept[optimizer][None]

    assert len(set(tables(found))) == 2
    assert param.tolist() == [-3.0] * 5


def train(cls: Any, steps: int, lowering: str) -> list[Tensor]:
    """Take steps in which the parameters take turns to have a gradient."""
    torch.manual_seed(0)
    params = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in range(1, 6)]
    optimizer = cls(params, lr=0.1)
    for step in range(steps):
        for index, param in enumerate(params):
            has_gradient = index == 0 or index % 2 == step % 2
            param.grad = torch.randn_like(param) if has_gradient else None
        with use_lowering(lowering):
            optimizer.step()
    return params


@inside_interpreter
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adafactor", "Prodigy"])
def test_gradients_that_come_and_go_need_no_new_buckets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make_table = table.Table.__init__

    def count(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        make_table(self, *args, **kwargs)

    monkeypatch.setattr(table.Table, "__init__", count)
    cls = getattr(optgen.optim, name)
    params = train(cls, 8, "fused_triton")
    expected = train(cls, 8, "forloop")

    assert len(made) == 2
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@inside_interpreter
def test_fresh_states_of_a_skipped_step_are_fresh_in_the_next() -> None:
    param = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = optgen.optim.SGD([param], lr=1.0, momentum=0.5, dampening=0.5)
    with use_lowering("fused_triton"):
        for found_inf in (1.0, 0.0, 0.0, 0.0):
            param.grad = torch.ones(3, dtype=torch.float64)
            optimizer.found_inf = torch.tensor(found_inf)
            optimizer.step()

    assert param.tolist() == [-3.0] * 3  # the momentum is 1 from the first step that is taken
