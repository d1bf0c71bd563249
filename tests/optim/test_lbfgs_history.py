"""Test LBFGS's history, and directions computed by torch's operations and by compiled kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim.lbfgs_problems import distance, new_run, quadratic, rosenbrock, start_point
from torch import Tensor

from optgen.optim import LBFGS
from optgen.optim.lbfgs import history
from optgen.optim.lbfgs.history import History, max_abs
from optgen.runtime.toolchain import library_cache

SIZES = [1, 7, 64, 1000, 4096, 20_001]  # less than a block of the compiled passes, up to several


@pytest.fixture(params=["torch", "compiled"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(history, "kernels_for", lambda like: None)
    return str(request.param)


def two_loops(pairs: list[Any], scale: float, gradient: Tensor) -> Tensor:
    """Return the direction by algorithm 7.4 of Nocedal and Wright, in float64."""
    q, alphas = gradient.double(), []
    for step, change in reversed(pairs):
        alphas.append(step.dot(q) / step.dot(change))
        q = q - alphas[-1] * change
    r = scale * q
    for step, change in pairs:
        r = r + (alphas.pop() - change.dot(r) / step.dot(change)) * step
    return -r


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("capacity", [1, 3, 9, 20])
@pytest.mark.parametrize("size", SIZES)
def test_a_direction_is_that_of_the_two_loop_recursion(
    implementation: str, size: int, capacity: int, dtype: torch.dtype, bound: float
) -> None:
    """Cover histories before and after they drop old pairs, and with rejected pairs."""
    generator = torch.Generator().manual_seed(size)
    like = torch.zeros(size, dtype=dtype)
    history, pairs, scale = History(capacity, like), [], 1.0
    assert (history._kernels is not None) == (implementation == "compiled")
    previous = torch.randn(size, generator=generator, dtype=dtype)
    for index in range(2 * capacity + 5):
        gradient = torch.randn(size, generator=generator, dtype=dtype)
        step = torch.randn(size, generator=generator, dtype=dtype)
        change = step + 0.3 * torch.randn(size, generator=generator, dtype=dtype)
        later = previous + change
        curvature, square = history.write_pair(later, previous, step / 2, 2.0)
        exact_change = (later - previous).double()
        assert curvature == pytest.approx(exact_change.dot(step.double()).item(), rel=bound)
        assert square == pytest.approx(exact_change.dot(exact_change).item(), rel=bound)
        if index % 4 != 1:
            history.accept(curvature / square)
            scale = curvature / square
            pairs.append((step.double(), exact_change))
        out = torch.empty_like(like)
        slope, max_abs_direction = history.compute_direction(gradient, out, torch.empty_like(like))
        expected = two_loops(pairs[-capacity:], scale, gradient)
        assert distance(out.double(), expected) < bound
        exact_slope = gradient.double().dot(out.double()).item()
        assert abs(slope - exact_slope) < bound * gradient.double().norm() * out.double().norm()
        assert max_abs_direction == max_abs(out)


def test_is_unchanged_in_is_true_until_the_state_or_the_history_changes() -> None:
    like = torch.arange(1.0, 6.0)
    history, state = History(3, like), {"n_iter": 2}
    for _ in range(2):
        history.write_pair(2 * like, like, like, 1.0)
        history.accept(1.0)
        history.compute_direction(like, torch.empty_like(like), torch.empty_like(like))
    history.write_to(state)

    assert history.is_unchanged_in(state, 3, like)
    assert not history.is_unchanged_in(state, 4, like)
    assert not history.is_unchanged_in(state, 3, like.double())
    assert not history.is_unchanged_in({**state, "old_dirs": state["old_dirs"][1:]}, 3, like)
    history.accept(1.0)
    assert not history.is_unchanged_in(state, 3, like)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_are_the_same_for_any_number_of_threads(dtype: torch.dtype) -> None:
    directions = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            directions.append(large_direction(dtype))
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(directions[0], other) for other in directions[1:])


def large_direction(dtype: torch.dtype) -> Tensor:
    """Return a direction from a history large enough for several threads."""
    torch.manual_seed(0)
    size = 300_001
    history = History(4, torch.empty(size, dtype=dtype))
    gradient, step = torch.randn(size, dtype=dtype), torch.randn(size, dtype=dtype)
    out = torch.empty_like(step)
    for _ in range(6):
        later = gradient + step + 0.1 * torch.randn(size, dtype=dtype)
        curvature, square = history.write_pair(later, gradient, step, 1.0)
        history.accept(curvature / square)
        history.compute_direction(later, out, torch.empty_like(out))
    return out


@pytest.mark.parametrize("size", [5, 70])
@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe", "history_size": 4}])
def test_both_implementations_step_as_torchs_lbfgs(
    implementation: str, options: dict[str, Any], size: int
) -> None:
    theirs = new_run(
        torch.optim.LBFGS, quadratic(size), start_point(size), lr=0.3, **options
    ).take_steps(2)
    ours = new_run(LBFGS, quadratic(size), start_point(size), lr=0.3, **options).take_steps(2)

    assert distance(ours[-1].param, theirs[-1].param) < 1e-12
    assert ours[-1].calls == theirs[-1].calls


def test_without_a_compiler_torchs_operations_compute_the_direction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the first run warns that LBFGS will be slow."""

    def fail_without_compiler(name: str, source: str) -> None:
        raise library_cache.NoCompilerError("no C++ compiler was found: install g++")

    expected = new_run(LBFGS, rosenbrock(5), start_point(5)).take_steps(1)[0].param
    monkeypatch.setattr(library_cache, "library", fail_without_compiler)
    caches = history._load_library, history._compiled_kernels
    for cache in caches:
        cache.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"LBFGS on CPU tensors will be slow: no C\+\+"):
            found = new_run(LBFGS, rosenbrock(5), start_point(5)).take_steps(1)[0].param
        new_run(LBFGS, rosenbrock(5), start_point(5)).take_steps(1)
    finally:
        for cache in caches:
            cache.cache_clear()

    assert distance(found, expected) < 1e-12


def test_a_short_run_needs_no_memory_for_a_long_history() -> None:
    run = new_run(LBFGS, rosenbrock(1000), start_point(1000), max_iter=5, history_size=100)
    run.take_steps(1)
    [step, *_] = run.optimizer.state[run.param]["old_stps"]

    pairs, bytes_per_number = 20, 8
    assert step.untyped_storage().nbytes() < pairs * bytes_per_number * 1100
