"""Test the memory of captured steps: one copy to the device, which replays read again."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from small_folds import small_folds
from torch import Tensor

import optgen.optim
from optgen import use_lowering
from optgen.runtime.fused_triton import backend, cached_step, graph_memory
from optgen.runtime.fused_triton.graph_memory import GraphMemory
from optgen.runtime.fused_triton.table import allocate, upload

pytest.importorskip("triton")

from benchmarks.triton_host import parameters, without_a_gpu

CPU = torch.device("cpu")


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


class Copies:
    """Memory of a device apart from that of the host, and the copies that a graph would replay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[tuple[Tensor, Tensor]] = []
        make_chunk, flush, copies = graph_memory._Chunk.__init__, graph_memory._Chunk.flush, self

        def with_host_memory(chunk: Any, device: torch.device, size: int) -> None:
            make_chunk(chunk, device, size)
            chunk._host = torch.full((size,), 0xAB, dtype=torch.uint8)

        def record(chunk: Any, reserve: int) -> None:
            first = chunk._flushed
            flush(chunk, reserve)
            if chunk._flushed > first:
                new = slice(first, chunk._flushed)
                copies.nodes.append((chunk._memory[new], chunk._host[new]))

        monkeypatch.setattr(graph_memory._Chunk, "__init__", with_host_memory)
        monkeypatch.setattr(graph_memory._Chunk, "flush", record)

    def replay(self) -> None:
        for target, source in self.nodes:
            target.copy_(source)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


@outside_interpreter
def test_numbers_written_after_the_copy_are_read_by_replays(copies: Copies) -> None:
    memory = GraphMemory(4096)
    table = allocate((3, 2), torch.int64, CPU, memory)
    numbers = allocate((2,), torch.float64, CPU, memory)
    upload(table, array("q", range(6)), memory)
    memory.flush()
    upload(table[1], array("q", [7, 8]), memory)
    upload(numbers, array("d", [0.5, 0.25]), memory)
    memory.flush()
    copies.replay()

    assert len(copies.nodes) == 1
    assert table.tolist() == [[0, 1], [7, 8], [4, 5]]
    assert numbers.tolist() == [0.5, 0.25]
    assert table.data_ptr() % 16 == numbers.data_ptr() % 16 == 0


@outside_interpreter
def test_memory_that_was_estimated_too_small_grows(copies: Copies) -> None:
    memory = GraphMemory(100)
    tables = [allocate((size,), torch.int32, CPU, memory) for size in (5, 0, 100, 1000)]
    for table in filter(len, tables):
        upload(table, array("i", range(table.numel())), memory)
    memory.flush()
    late = allocate((3,), torch.int64, CPU, memory)
    upload(late, array("q", [1, 2, 3]), memory)
    memory.flush()
    copies.replay()

    assert [table.tolist() for table in tables] == [list(range(t.numel())) for t in tables]
    assert late.tolist() == [1, 2, 3]


@outside_interpreter
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adafactor", "Muon", "LAMB", "Lion", "CAME"])
@pytest.mark.parametrize("count", [1, 30])
def test_a_captured_step_has_one_copy(
    name: str, count: int, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = getattr(optgen.optim, name)
    with without_a_gpu():
        params = parameters(cls, count)
        if name == "Adafactor":
            params += [torch.ones(5, requires_grad=True), torch.ones(300, 200, requires_grad=True)]
        optimizer = cls(params)
        optimizer.step()
        for param in params:
            param.grad = torch.ones_like(param)
        monkeypatch.setattr(backend, "_is_capturing", lambda batches: True)
        monkeypatch.setattr(cached_step, "capturing", lambda: True)
        optimizer.step()

    assert len(copies.nodes) == 1


@outside_interpreter
@pytest.mark.parametrize("name", ["LAMB", "Adafactor", "CAME"])
def test_the_tables_of_folds_come_with_the_one_copy(
    name: str, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_folds():
        test_a_captured_step_has_one_copy(name, 3, copies, monkeypatch)


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let steps make the plans of a capture."""
    monkeypatch.setattr(backend, "_is_capturing", lambda batches: True)
    monkeypatch.setattr(backend, "capturing", lambda: True)
    monkeypatch.setattr(cached_step, "capturing", lambda: True)
    with use_lowering("fused_triton"):
        yield


@inside_interpreter
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adafactor", "Muon", "CAME", "Prodigy"])
def test_captured_steps_compute_as_others(name: str, capturing: None) -> None:
    ours, theirs = (train(name, 3, lowering) for lowering in (None, "forloop"))
    for param, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-11, atol=1e-13)


def train(name: str, steps: int, lowering: str | None) -> list[Tensor]:
    torch.manual_seed(0)
    lr = torch.tensor(0.1, dtype=torch.float64)
    shapes = ((3, 4), (20, 150), (1, 1))
    params = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    optimizer = getattr(optgen.optim, name)(params, lr=lr)
    for step in range(steps):
        lr.fill_(0.1 / (step + 1))
        for param in params:
            param.grad = torch.randn_like(param)
        if lowering is None:
            optimizer.step()
        else:
            with use_lowering(lowering):
                optimizer.step()
    return params
