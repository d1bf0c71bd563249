"""Test every part of the benchmark on tiny tensors; figures are checked only for plausibility."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optgen.bench import child_process, report, suite
from optgen.bench.measure import Budget
from optgen.bench.report import draw
from optgen.bench.results import Cell
from optgen.bench.suite import ONE_GROUP, Suite
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


def test_sgd_is_measured_with_momentum() -> None:
    params = [torch.zeros(2, requires_grad=True)]

    for title in forms("SGD", torch.float32):
        assert make_optimizer("SGD", title, params).param_groups[0]["momentum"] == 0.9


def test_a_child_process_that_takes_too_long_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    assert child_process.ask("timeit", {}, timeout=0.01) is None

    monkeypatch.setattr(child_process, "ask", lambda *arguments: None)
    found = suite.compiled_step_times(Cell("compile", "SGD", "small"), 3.0)
    assert found == {suite.COMPILED: {"not_done_after_s": 3.0}}


def test_the_error_of_a_child_process_has_its_message() -> None:
    with pytest.raises(RuntimeError, match="No module named"):
        child_process.ask("optgen.bench.nothing", {})


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
