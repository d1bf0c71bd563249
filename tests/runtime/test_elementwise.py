"""Test calls of functions over lists: the tensors that they take, their lowerings and cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from optgen import use_lowering
from optgen.generated.averaging import ema as ema_module
from optgen.generated.averaging.ema import ema
from optgen.optim import swa_utils
from optgen.runtime.eager import backend
from optgen.runtime.elementwise import UnfitError
from optgen.runtime.fused_cpu import cached_step
from optgen.runtime.fused_cpu.backend import FusedCpuBackend

LOWERINGS = ("forloop", "foreach", "fused_cpu")


def random_lists(
    *sizes: Any, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[Tensor]]:
    """Return two lists of random tensors of these sizes."""
    return tuple([torch.randn(size, dtype=dtype) for size in sizes] for _ in range(2))


def check_ema(means: list[Tensor], tensors: list[Tensor], decay: float = 0.9) -> None:
    """Check two calls of `ema`: the first checks its tensors, the second may be a cached call."""
    for _ in range(2):
        expected = [
            m + (t.to(m.dtype) - m) * (1 - decay) for m, t in zip(means, tensors, strict=True)
        ]
        ema(means, tensors, decay=decay)
        for mean, value in zip(means, expected, strict=True):
            torch.testing.assert_close(mean, value)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_lists_may_have_several_dtypes(lowering: str) -> None:
    """A list may mix dtypes, and the two lists may differ in dtype at one index."""
    torch.manual_seed(0)  # lowerings round a tensor of another dtype at different points
    means = [torch.randn(5), torch.randn(3, dtype=torch.float64), torch.randn(4).half()]
    tensors = [torch.randn(5).double(), torch.randn(3).bfloat16(), torch.randn(4)]
    with use_lowering(lowering):
        check_ema(means, tensors)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_tensors_may_have_any_layout(lowering: str) -> None:
    means, tensors = random_lists((4, 6), (6, 4), (3, 8), (2, 3, 4, 5))
    means[0], tensors[1] = torch.randn(8, 12).double()[::2, ::2], torch.randn(4, 6).double().t()
    means[2] = means[2].t().contiguous().t()
    tensors[3] = tensors[3].to(memory_format=torch.channels_last)
    with use_lowering(lowering):
        check_ema(means, tensors)


def test_negative_views_are_taken_but_not_by_fused_cpp() -> None:
    numbers = torch.randn(6, dtype=torch.complex128)
    means, tensors = [numbers.conj().imag, torch.ones(2).double()], random_lists(6, 2)[0]
    assert means[0].is_neg()
    check_ema(means, tensors)
    check_ema(tensors, [numbers.conj().imag, torch.zeros(2).double()])
    with use_lowering("fused_cpu"), pytest.raises(RuntimeError, match="holds their negatives"):
        ema(means, tensors)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_complex_numbers_are_taken(lowering: str) -> None:
    with use_lowering(lowering):
        check_ema(*random_lists(5, (2, 3), dtype=torch.complex128))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_conjugate_views_are_read_and_not_written(lowering: str) -> None:
    """Reading needs no copy; writing would need one, so torch's error is raised."""
    means, tensors = random_lists(5, dtype=torch.complex128)
    with use_lowering(lowering):
        check_ema(means, [tensors[0].conj()])
        with pytest.raises(RuntimeError, match="unresolved conjugated tensors"):
            ema([means[0].conj()], tensors)


def test_a_tensor_listed_twice_is_moved_twice() -> None:
    """Two threads must not update the tensor at once."""
    mean, (tensors, others) = (
        torch.zeros(1 << 21),
        random_lists(1 << 21, 1 << 21, dtype=torch.float32),
    )
    expected = mean.lerp(tensors[0], 0.5).lerp(tensors[1], 0.5)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ema(others, tensors, decay=0.5)  # the next call has lists of equal length, and is cached
        ema([mean, mean], tensors, decay=0.5)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(mean, expected)


def test_a_call_advances_versions_and_records_no_graph() -> None:
    means, tensors = ([torch.ones(3, requires_grad=True)] for _ in range(2))
    squares = (means[0] ** 2).sum()
    for version in (1, 2):
        ema(means, tensors)
        assert means[0]._version == version
        assert means[0].grad_fn is None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()
    assert torch.is_grad_enabled()


def test_unfit_arguments_are_refused() -> None:
    ones = [torch.ones(2, 3), torch.ones(4)]
    for others in ([torch.ones(2, 3)], [torch.ones(3, 2), torch.ones(4)], []):
        with pytest.raises(ValueError, match="of ema differ in length or in the shapes"):
            ema(ones, others)
    with pytest.raises(TypeError, match="ema takes tensors, but lists hold a NoneType"):
        ema(ones, [ones[0], None])
    ema(ones, ones)  # lists of these lengths, so that the next call is cached
    with pytest.raises(ValueError, match="of ema differ in length or in the shapes"):
        ema(ones, [torch.zeros(3, 2), torch.zeros(4)])
    with pytest.raises(ValueError, match="of ema differ in length or in the shapes"):
        ema([torch.ones(2, dtype=torch.complex64)], [torch.ones(2)])
    with pytest.raises(UnfitError, match=r"ema takes real or complex numbers, not torch\.int64"):
        ema(ones, [torch.ones(2, 3), torch.arange(4)])
    with pytest.raises(RuntimeError, match="cannot run through 'fused_triton'"):  # noqa: SIM117
        with use_lowering("fused_triton"):
            ema(ones, ones)
    assert torch.equal(ones[0], torch.ones(2, 3))
    ema([], [])
    ema((), [])


def test_numbers_may_be_tensors() -> None:
    means, tensors = random_lists(3, 4)
    for lowering in LOWERINGS:
        with use_lowering(lowering):
            for count in (torch.tensor(1), torch.tensor([3]), 7.0):
                expected = [
                    m.lerp(t, 1 / (float(count) + 1)) for m, t in zip(means, tensors, strict=True)
                ]
                swa_utils.get_swa_multi_avg_fn()(means, tensors, count)
                torch.testing.assert_close(means, expected)


def test_a_call_without_the_reader_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_step, "reader", lambda: None)
    ema_module._update._cached.clear()
    check_ema(*random_lists(3, (4, 5)))
    assert not ema_module._update._cached


def test_a_second_call_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached call takes other tensors, numbers and dtypes, but not lists of another length."""
    if cached_step.reader() is None:
        pytest.skip("no reader on this torch")
    ema_module._update._cached.clear()
    ema(*random_lists(3, 4))
    gathered: list[object] = []
    monkeypatch.setattr(FusedCpuBackend, "call", lambda *arguments: gathered.append(arguments))
    for dtype in (torch.float64, torch.bfloat16):
        means, tensors = random_lists(5, (6, 2), dtype=dtype)
        expected = [m.lerp(t, 0.75) for m, t in zip(means, tensors, strict=True)]
        ema(tuple(means), tensors, decay=0.25)
        torch.testing.assert_close(means, expected)
    assert not gathered
    ema(*random_lists(5))
    assert len(gathered) == 1


def test_a_gathered_call_replaces_the_entry_of_its_length() -> None:
    """A call with complex lists is gathered, because the reader cannot read complex tensors."""
    if cached_step.reader() is None:
        pytest.skip("no reader on this torch")
    ema_module._update._cached.clear()
    for length in range(1, 5):
        ema(*random_lists(*[2] * length))
    before = ema_module._update._cached
    ema(*random_lists(2, 2, dtype=torch.complex128))
    after = ema_module._update._cached
    assert sorted(after) == [1, 2, 3, 4]
    assert [length for length in after if after[length] is not before[length]] == [2]


def test_at_most_four_lengths_are_cached() -> None:
    for length in range(1, 9):
        ema(*random_lists(*[2] * length))
    assert len(ema_module._update._cached) <= 4


def test_a_call_without_a_compiler_takes_the_for_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ema_module._update._cached.clear()
    monkeypatch.setattr(
        FusedCpuBackend, "build_or_reason", lambda self, owner, batch: "no compiler"
    )
    modules: list[str] = []
    load = backend.load_function

    def record_load(package: Any, module: str, name: str) -> Any:
        modules.append(module)
        return load(package, module, name)

    monkeypatch.setattr(backend, "load_function", record_load)
    check_ema(*random_lists(3, (4, 5)))
    assert modules == ["forloop", "forloop"]


def test_threads_may_call_at_once() -> None:
    errors: list[BaseException] = []

    def call_often() -> None:
        try:
            for _ in range(50):
                check_ema(*random_lists(3, 4, 5))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        yield distributed.init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")
def test_ema_takes_only_shards_of_equal_placements(mesh: Any) -> None:
    """`get_ema_multi_avg_fn` leaves shards of unequal placements to torch's operations."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def sharded_copy(tensor: Tensor, placement: Any) -> Tensor:
        return distribute_tensor(tensor.clone(), mesh, [placement])

    (mean, plain), (tensor, other) = random_lists((4, 3), 5)
    for placements in ((Shard(0), Shard(0)), (Shard(0), Replicate()), (Shard(0), Shard(1))):
        sharded = [sharded_copy(mean, placements[0]), plain.clone()]
        values = [sharded_copy(tensor, placements[1]), other]
        if placements[0] == placements[1]:
            with use_lowering("fused_cpu"):
                ema(sharded, values, decay=0.9)
        else:
            with pytest.raises(UnfitError, match="only with equal meshes and placements"):
                ema(sharded, values, decay=0.9)
            swa_utils.get_ema_multi_avg_fn(0.9)(sharded, values, 0)
        torch.testing.assert_close(sharded[0].full_tensor(), mean.lerp(tensor, 0.1))
        torch.testing.assert_close(sharded[1], plain.lerp(other, 0.1))


def test_a_tensor_of_another_class_is_left_to_torch() -> None:
    class OverridingTensor(Tensor):
        """A tensor that overrides operations."""

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    means, tensors = (
        [torch.ones(3).as_subclass(OverridingTensor), torch.ones(2)],
        [torch.zeros(3), torch.zeros(2)],
    )
    with pytest.raises(UnfitError, match="takes no tensors of class OverridingTensor"):
        ema(means, tensors)
    swa_utils.get_ema_multi_avg_fn(0.5)(means, tensors, 0)
    assert [m.tolist() for m in means] == [[0.5] * 3, [0.5] * 2]
