"""Test optgen bench with a user's rule: compared with the memory bandwidth, and with torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.commands import run
from spec_texts import DECORATOR, spec

from optgen.bench import variants
from optgen.bench.tensor_lists import LISTS, TensorList
from optgen.cli.bench import traffic


@pytest.fixture(autouse=True)
def small_lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make lists of tensors small and samples short; clear the caches of the bench afterwards."""
    monkeypatch.setattr("optgen.bench.measure._SAMPLE_SECONDS", 1e-5)
    monkeypatch.setitem(LISTS, "2000x256", TensorList("2000x256", "", [(2, 2)] * 3))
    monkeypatch.setitem(LISTS, "20groups", TensorList("20groups", "", [(2, 2)] * 4, 2))
    yield
    variants.USER_CLASSES.clear()
    traffic.cache_clear()


def write_spec(folder: Path, name: str, text: str) -> str:
    """Write a spec file; return its path."""
    path = folder / f"{name}.py"
    path.write_text(text)
    return str(path)


def bench_lines(*names: str, lists: str = "2000x256") -> list[str]:
    """Return the lines that optgen bench prints."""
    result = run("bench", *names, "--list", lists, "--seconds", "0.01")
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_a_users_rule_is_compared_with_the_memory_limit(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "my_rule", spec())
    header, _, row = bench_lines(path)
    assert "of limit" in header
    assert "torch" not in header
    assert row.split()[0] == "Made"
    assert "(" in row  # the share of the limit, by medians and by minima


def test_a_users_rule_may_stand_beside_a_class_of_torch(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "my_rule", spec())
    header, _, my_rule, sgd = bench_lines(path, "sgd", path)
    assert "torch's default" in header
    assert my_rule.split()[-2:] == ["-", "-"]
    assert sgd.split()[-1].endswith("x")


def test_a_rule_without_lr_is_measured_with_several_groups(tmp_path: Path) -> None:
    text = spec("p = p - rate * g", hypers="rate=hyper(0.1)")
    assert bench_lines(write_spec(tmp_path, "my_rule", text), lists="20groups")[2].startswith(
        "Made"
    )


def test_a_users_rule_has_no_picture(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "my_rule", spec("p = p - lr * g / (norm(g) + 1)"))
    plot = tmp_path / "bench.png"
    result = run("bench", path, "--list", "2000x256", "--seconds", "0.01", "--plot", str(plot))
    assert result.exit_code == 0, result.output
    assert "no picture: it shows steps beside torch's, on the lists" in result.stdout


def test_bench_says_why_it_refuses_a_rule(tmp_path: Path) -> None:
    assert run("bench", str(tmp_path / "none.py")).exit_code == 2
    wrong = run("bench", write_spec(tmp_path, "wrong", spec("p = p - lr * nothing")))
    assert wrong.exit_code == 3
    assert "unknown name `nothing`" in wrong.output
    sparse = DECORATOR.replace(")", ', gradient="sparse_only")')
    found = run("bench", write_spec(tmp_path, "rows", spec(decorator=sparse)))
    assert found.exit_code == 2
    assert "dense gradients are measured" in found.output
    with_input = spec("p = p - lr * g * h / t", inputs='p, g, t, h=given("hessian")')
    found = run("bench", write_spec(tmp_path, "with_input", with_input))
    assert found.exit_code == 2
    assert "a step needs hessian" in " ".join(found.output.split())
    first, second = (write_spec(tmp_path, f"my_{n}", spec(f"p = p - {n} * lr * g")) for n in (2, 3))
    assert "two of these files hold a class Made" in run("bench", first, second).output


def test_an_optimizer_of_the_catalogue_is_measured_by_its_name() -> None:
    _, _, lion, belief = bench_lines("lion", "AdaBelief")
    assert [row.split()[0] for row in (lion, belief)] == ["Lion", "AdaBelief"]
