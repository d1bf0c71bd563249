"""Test every part of the CPU benchmark on tiny tensors; figures are checked for plausibility."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import optgen.optim
from benchmarks import cpu_contention, cpu_first_step, cpu_peak_memory
from benchmarks.cpu_cells import PARTS, published_cells
from benchmarks.cpu_first_step import COLD, WARM
from benchmarks.cpu_peak_memory import measure_extra_memory
from optgen.bench import child_process
from optgen.bench.measure import Budget
from optgen.bench.results import Cell
from optgen.bench.suite import Suite
from optgen.bench.tensor_lists import LISTS, TensorList
from optgen.bench.variants import CLASSES, DEFAULT, FUSED, OURS, forms
from optgen.cli.bench import is_memory_bound, traffic

SUITE = Suite(traffic, Budget(0.0, max_samples=1, min_samples=1), parts=PARTS)
SMALL = TensorList("small", "three", [(3, 4), (5,), (2, 2, 1, 1)])


@pytest.fixture(autouse=True)
def small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optgen.bench.measure._SAMPLE_SECONDS", 1e-5)
    monkeypatch.setitem(LISTS, "small", SMALL)


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()

    found = SUITE.run(Cell("bits", "AdamW", "small", threads=before + 1))

    assert found == {OURS: {"different": 0}}
    assert torch.get_num_threads() == before


def test_steps_are_measured_beside_a_busy_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_contention, "_SAMPLES", 1)
    monkeypatch.setattr(cpu_contention, "_SETTLE_SECONDS", 0.0)

    found = SUITE.run(Cell("busy", "SGD", "small"))

    assert set(found) == {OURS, FUSED}
    assert min(found[OURS].values()) > 0


def test_peak_growth_counts_memory_of_torch_and_of_malloc() -> None:
    libc = cpu_peak_memory.ctypes.CDLL(None)
    libc.malloc.restype = cpu_peak_memory.ctypes.c_void_p

    def by_malloc() -> None:
        address = libc.malloc(8_000_000)
        cpu_peak_memory.ctypes.memset(address, 1, 8_000_000)
        libc.free(cpu_peak_memory.ctypes.c_void_p(address))

    assert 7e6 < cpu_peak_memory.peak_growth(lambda: torch.ones(2_000_000)) < 10e6
    assert 7e6 < cpu_peak_memory.peak_growth(by_malloc) < 10e6
    assert cpu_peak_memory.peak_growth(lambda: None) < 1e6


def test_the_extra_memory_of_every_form_is_measured() -> None:
    found = measure_extra_memory("Adam", "small", "float32", torch.get_num_threads())

    assert set(found) == set(forms("Adam", torch.float32))
    assert found[OURS]["bytes"] < 1e6


def test_extra_memory_counts_what_a_step_keeps_but_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra_memory = []
    monkeypatch.setitem(LISTS, "small", TensorList("small", "", [(1_000_000,)]))
    step = optgen.optim.SGD.step

    def step_that_keeps_memory(self: Any) -> None:
        step(self)
        if not extra_memory and self.param_groups[0]["params"][0].numel() > 1000:
            extra_memory.append(torch.ones(2_000_000))

    monkeypatch.setattr(optgen.optim.SGD, "step", step_that_keeps_memory)

    found = measure_extra_memory("SGD", "small", "float32", torch.get_num_threads())

    assert 7e6 < found[OURS]["bytes"] < 10e6
    assert abs(found[FUSED]["bytes"]) < 1e6


def test_the_first_step_of_a_process_is_measured() -> None:
    """The test calls, in its own process, what the benchmark calls in a new process."""
    request: dict[str, Any] = {"dtype": "float32", "threads": torch.get_num_threads()}

    found = cpu_first_step.first_and_later_steps("AdamW", OURS, [[3, 4], [5]], **request)

    assert set(found) == {"first", "again", "plain", "states"}
    assert found["plain"] < found["first"]


def test_our_first_steps_are_measured_cold_and_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold step finds an empty cache. A warm step finds libraries of an earlier process."""
    folders: list[str] = []

    def ask(module: str, request: Any, environment: Any = None) -> dict[str, float]:
        folders.append((environment or {}).get("OPTGEN_CACHE_DIR", request["title"]))
        return {"first": float(len(folders)), "again": 1.0, "plain": 1.0}

    monkeypatch.setattr(child_process, "ask", ask)

    found = cpu_first_step.first_steps(Cell("first step", "AdamW", "small"))

    assert list(found) == [COLD, WARM, DEFAULT, FUSED]
    assert len(set(folders[:2])) == 2
    assert len(set(folders[1:5])) == 1
    assert found[COLD]["first"] == 1
    assert found[WARM] == {"first": 4, "again": 1, "plain": 1, "first_min": 3, "first_max": 5}


def test_a_child_process_returns_a_result() -> None:
    request = {"name": "SGD", "tensors": "1e6", "dtype": "float32", "threads": 1}

    found = child_process.ask("benchmarks.cpu_peak_memory", request)

    assert found[OURS]["bytes"] >= 0


def test_the_published_cells_have_every_part_and_class() -> None:
    found = list(published_cells(is_memory_bound))

    assert len(found) == len(set(found))
    assert {cell.part for cell in found} == set(PARTS)
    assert {cell.name for cell in found} == set(CLASSES)
    assert {(c.dtype, c.threads) for c in found if c.part == "step"} == {
        (dtype, threads) for dtype in ("float32", "bfloat16") for threads in (1, 2)
    }
    assert not any(cell.name == "Muon" and cell.tensors == "gpt2" for cell in found)
