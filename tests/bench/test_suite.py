"""Test every part of the benchmark on tiny tensors; figures are checked only for plausibility."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import optgen.optim
from optgen.bench import (
    child_process,
    cpu_contention,
    first_step,
    peak_memory,
    report,
    select_cells,
    torch_compile,
)
from optgen.bench.first_step import COLD, WARM
from optgen.bench.measure import Budget
from optgen.bench.plot import draw
from optgen.bench.results import Cell
from optgen.bench.suite import ONE_GROUP, PARTS, Suite
from optgen.bench.tensor_lists import LISTS, TensorList
from optgen.bench.variants import CLASSES, DEFAULT, FUSED, LIMIT, OURS, forms, make_optimizer
from optgen.cli.bench import is_memory_bound, traffic

SUITE = Suite(traffic, Budget(0.0, max_samples=1, min_samples=1))
SMALL = TensorList("small", "three", [(3, 4), (5,), (2, 2, 1, 1)])


@pytest.fixture(autouse=True)
def small_tensors_and_short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {"small": SMALL, "20groups": TensorList("20groups", "", [(4, 4)] * 40, num_groups=20)}
    monkeypatch.setattr("optgen.bench.measure._SAMPLE_SECONDS", 1e-5)
    monkeypatch.setattr("optgen.bench.measure._CACHE_BYTES", 1000)
    for name, each in lists.items():
        monkeypatch.setitem(LISTS, name, each)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_measured_with_torchs_forms(name: str) -> None:
    """The results have our step, torch's forms, and the limit if memory limits the step."""
    cell = Cell("step", name, "small" if is_memory_bound(name) else "20groups", "bfloat16")

    found = SUITE.run(cell)

    assert next(iter(found)) == OURS
    assert (LIMIT in found) is is_memory_bound(name)
    assert DEFAULT in found
    assert (FUSED in found) is (name in {"SGD", "Adam", "AdamW", "Adagrad"})
    assert found[OURS]["median"] > 0
    assert str(cell) in report.line(cell, found)


def test_many_groups_are_compared_with_one_group() -> None:
    found = SUITE.run(Cell("step", "Adam", "20groups"))

    assert found[ONE_GROUP]["median"] > 0


def test_the_option_unfused_adds_our_other_lowerings() -> None:
    found = Suite(traffic, SUITE.budget, unfused=True).run(Cell("step", "Adam", "small"))

    assert {"optgen for-loop", "optgen foreach"} <= set(found)


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()

    found = SUITE.run(Cell("bits", "AdamW", "small", threads=before + 1))

    assert found == {OURS: {"different": 0}}
    assert torch.get_num_threads() == before


def test_sgd_is_measured_with_momentum() -> None:
    params = [torch.zeros(2, requires_grad=True)]

    for title in forms("SGD", torch.float32):
        assert make_optimizer("SGD", title, params).param_groups[0]["momentum"] == 0.9


def test_steps_are_measured_beside_a_busy_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_contention, "_SAMPLES", 1)
    monkeypatch.setattr(cpu_contention, "_SETTLE_SECONDS", 0.0)

    found = SUITE.run(Cell("busy", "SGD", "small"))

    assert set(found) == {OURS, FUSED}
    assert min(found[OURS].values()) > 0


def test_peak_growth_counts_memory_of_torch_and_of_malloc() -> None:
    libc = peak_memory.ctypes.CDLL(None)
    libc.malloc.restype = peak_memory.ctypes.c_void_p

    def by_malloc() -> None:
        address = libc.malloc(8_000_000)
        peak_memory.ctypes.memset(address, 1, 8_000_000)
        libc.free(peak_memory.ctypes.c_void_p(address))

    assert 7e6 < peak_memory.peak_growth(lambda: torch.ones(2_000_000)) < 10e6
    assert 7e6 < peak_memory.peak_growth(by_malloc) < 10e6
    assert peak_memory.peak_growth(lambda: None) < 1e6


def test_the_extra_memory_of_every_form_is_measured() -> None:
    found = peak_memory.measure_extra_memory("Adam", "small", "float32", torch.get_num_threads())

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

    found = peak_memory.measure_extra_memory("SGD", "small", "float32", torch.get_num_threads())

    assert 7e6 < found[OURS]["bytes"] < 10e6
    assert abs(found[FUSED]["bytes"]) < 1e6


def test_the_first_step_of_a_process_is_measured() -> None:
    """The test calls, in its own process, what the benchmark calls in a new process."""
    request: dict[str, Any] = {"dtype": "float32", "threads": torch.get_num_threads()}

    found = first_step.first_and_later_steps("AdamW", OURS, [[3, 4], [5]], **request)

    assert set(found) == {"first", "again", "plain", "states"}
    assert found["plain"] < found["first"]


def test_our_first_steps_are_measured_cold_and_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold step finds an empty cache. A warm step finds libraries of an earlier process."""
    folders: list[str] = []

    def ask(module: str, request: Any, environment: Any = None) -> dict[str, float]:
        folders.append((environment or {}).get("OPTGEN_CACHE_DIR", request["title"]))
        return {"first": float(len(folders)), "again": 1.0, "plain": 1.0}

    monkeypatch.setattr(child_process, "ask", ask)

    found = first_step.first_steps(Cell("first step", "AdamW", "small"))

    assert list(found) == [COLD, WARM, DEFAULT, FUSED]
    assert len(set(folders[:2])) == 2
    assert len(set(folders[1:5])) == 1
    assert found[COLD]["first"] == 1
    assert found[WARM] == {"first": 4, "again": 1, "plain": 1, "first_min": 3, "first_max": 5}


def test_a_child_process_returns_a_result() -> None:
    request = {"name": "SGD", "tensors": "1e6", "dtype": "float32", "threads": 1}

    found = child_process.ask("optgen.bench.peak_memory", request)

    assert found[OURS]["bytes"] >= 0


def test_a_child_process_that_takes_too_long_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    assert child_process.ask("timeit", {}, timeout=0.01) is None

    monkeypatch.setattr(child_process, "ask", lambda *arguments: None)
    found = torch_compile.compiled_step_times(Cell("compile", "SGD", "small"), 3.0)
    assert found == {torch_compile.COMPILED: {"not_done_after_s": 3.0}}


def test_the_error_of_a_child_process_has_its_message() -> None:
    with pytest.raises(RuntimeError, match="No module named"):
        child_process.ask("optgen.bench.nothing", {})


def test_the_published_cells_have_every_part_and_class() -> None:
    found = list(select_cells.published_cells(is_memory_bound))

    assert len(found) == len(set(found))
    assert {cell.part for cell in found} == set(PARTS)
    assert {cell.name for cell in found} == set(CLASSES)
    assert {(c.dtype, c.threads) for c in found if c.part == "step"} == {
        (dtype, threads) for dtype in ("float32", "bfloat16") for threads in (1, 2)
    }
    assert not any(cell.name == "Muon" and cell.tensors == "gpt2" for cell in found)


def test_a_picture_is_drawn_only_from_results(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    assert not draw({}, path)

    found = {
        Cell("step", name, tensors): {
            title: {"median": value} for title, value in ((OURS, 1.0), (LIMIT, 0.9), (DEFAULT, 9.0))
        }
        for name in ("SGD", "AdamW")
        for tensors in ("resnet50", "2000x256")
    }
    assert draw(found, path)
    assert path.stat().st_size > 10_000
