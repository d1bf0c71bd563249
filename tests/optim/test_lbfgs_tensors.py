"""Test LBFGS with unusual parameters and gradients, with NaN, and with closures that raise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from optim.lbfgs_problems import distance, new_run, quadratic, rosenbrock, start_point
from torch import Tensor
from torch.nn import Parameter

from optgen.optim import LBFGS

LINE_SEARCHES = [{}, {"line_search_fn": "strong_wolfe"}]


def minimize(cls: Any, params: list[Parameter], loss: Any, steps: int = 3, **options: Any) -> Any:
    """Return (parameters, losses) after some steps."""
    optimizer = cls(params, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        value = loss(params)
        value.backward()
        return value

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    return [param.detach().clone() for param in params], losses


def convex_loss(params: list[Parameter]) -> Tensor:
    """Return a convex loss of real and complex parameters. Its minimum is not at 0."""
    total = torch.zeros((), dtype=torch.float64)
    for index, param in enumerate(params):
        real = torch.view_as_real(param) if param.is_complex() else param
        weights = torch.linspace(0.3, 2, real.numel(), dtype=torch.float64).view(real.shape)
        total = total + (weights * (real - 0.5 - index).double() ** 2).sum()
        total = total + 0.1 * (real.double() ** 4).sum()
    return total


def parameters_of_several_shapes() -> list[Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 3), (), (4,), (0,), (2, 1, 3)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [Parameter(tensor) for tensor in tensors]


@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
def test_parameters_of_several_shapes_end_as_torchs(options: dict[str, Any]) -> None:
    ours, losses = minimize(LBFGS, parameters_of_several_shapes(), convex_loss, lr=0.2, **options)
    theirs, expected = minimize(
        torch.optim.LBFGS, parameters_of_several_shapes(), convex_loss, lr=0.2, **options
    )

    assert losses == pytest.approx(expected, rel=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
def test_complex_parameters_end_as_torchs(options: dict[str, Any]) -> None:
    """The optimizer also has a real parameter."""

    def params() -> list[Parameter]:
        torch.manual_seed(1)
        return [
            Parameter(torch.randn(3, 2, dtype=torch.complex128)),
            Parameter(torch.randn(2, dtype=torch.float64)),
        ]

    ours, _ = minimize(LBFGS, params(), convex_loss, lr=0.2, **options)
    theirs, _ = minimize(torch.optim.LBFGS, params(), convex_loss, lr=0.2, **options)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-12, atol=1e-12)


def test_parameters_in_float32_and_float64_end_as_torchs() -> None:
    """LBFGS flattens them to one float64 vector, as in torch."""

    def params() -> list[Parameter]:
        return [Parameter(torch.ones(3)), Parameter(torch.ones(4, dtype=torch.float64))]

    ours, _ = minimize(LBFGS, params(), convex_loss, lr=0.2)
    theirs, _ = minimize(torch.optim.LBFGS, params(), convex_loss, lr=0.2)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert torch.allclose(mine, other, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_parameters_are_computed_in_float32(dtype: torch.dtype) -> None:
    """The history needs float32: successive steps can be equal in 16 bits."""
    params = [Parameter(torch.tensor([2.0, -1.0, 0.25]).to(dtype))]
    [found], losses = minimize(LBFGS, params, convex_loss, steps=4, line_search_fn="strong_wolfe")
    [exact], _ = minimize(
        LBFGS, [Parameter(params[0].detach().double())], convex_loss, line_search_fn="strong_wolfe"
    )

    assert found.dtype == dtype
    assert losses[-1] < losses[0]
    assert distance(found.double(), exact) < 2 * torch.finfo(dtype).eps


def test_channels_last_parameters_end_as_contiguous_ones() -> None:
    """Torch's LBFGS cannot flatten gradients in channels-last order."""
    torch.manual_seed(0)
    contiguous = Parameter(torch.randn(2, 3, 4, 5, dtype=torch.float64))
    channels_last = Parameter(contiguous.detach().clone(memory_format=torch.channels_last))
    [expected], _ = minimize(LBFGS, [contiguous], convex_loss, lr=0.2)
    [found], _ = minimize(LBFGS, [channels_last], convex_loss, lr=0.2)

    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, expected)


def test_a_missing_gradient_counts_as_zeros() -> None:
    results = []
    for cls in (LBFGS, torch.optim.LBFGS):
        params = [Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(3)]
        moved, _ = minimize(cls, params, lambda params: convex_loss(params[::2]), lr=0.2)
        results.append(moved)
    ours, theirs = results

    assert torch.equal(ours[1], torch.ones(3, dtype=torch.float64))
    assert all(map(torch.allclose, ours, theirs))


def test_sparse_gradients_are_made_dense() -> None:
    def step(cls: Any, sparse: bool) -> Tensor:
        param = Parameter(torch.ones(4, 3, dtype=torch.float64))
        optimizer = cls([param], lr=0.2)

        def closure() -> Tensor:
            loss = convex_loss([param])
            [grad] = torch.autograd.grad(loss, param)
            grad = grad * torch.tensor([1, 0, 1, 0], dtype=torch.float64)[:, None]
            param.grad = grad.to_sparse() if sparse else grad
            return loss

        optimizer.step(closure)
        return param.detach()

    found = step(LBFGS, sparse=True)
    assert torch.equal(found, step(LBFGS, sparse=False))
    assert torch.allclose(found, step(torch.optim.LBFGS, sparse=True), rtol=1e-12)


def test_a_parameter_given_twice_moves_twice() -> None:
    results = []
    for cls in (LBFGS, torch.optim.LBFGS):
        param = Parameter(torch.ones(3, dtype=torch.float64))
        with pytest.warns(UserWarning, match="duplicate parameters"):
            [moved, _], _ = minimize(
                cls, [param, param], lambda params: convex_loss(params[:1]), lr=0.05
            )
        results.append(moved)

    assert torch.allclose(*results, rtol=1e-12)


def test_parameters_on_two_devices_are_refused() -> None:
    optimizer = LBFGS([Parameter(torch.ones(2)), Parameter(torch.ones(2, device="meta"))])
    with pytest.raises(RuntimeError, match="must be on one device; these are on cpu and meta"):
        optimizer.step(lambda: 1.0)


def test_a_step_without_elements_returns_the_loss() -> None:
    """Torch raises an error about an empty maximum."""
    assert LBFGS([Parameter(torch.ones(0))]).step(lambda: 1.5) == 1.5


@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(value: float, options: Any) -> None:
    """Torch's LBFGS makes every parameter NaN, and calls the closure as often as it may."""
    run = new_run(LBFGS, quadratic(4), start_point(4), **options)
    run.take_steps(1)
    before, calls = run.param.detach().clone(), run.calls
    original_function, run.function = run.function, lambda x: (x * value).sum()
    run.take_steps(1)

    assert torch.equal(run.param, before)
    assert run.calls == calls + 1
    run.function = original_function
    assert run.take_steps(3)[-1].param.isfinite().all()


def test_a_step_into_nan_is_undone() -> None:
    """Without a line search, LBFGS evaluates the closure, and finds the NaN, after the update."""
    run = new_run(LBFGS, lambda x: x.sqrt().sum(), Parameter(torch.tensor([0.5])), lr=10.0)
    run.take_steps(1)

    assert run.param.isfinite().all()
    assert run.calls == 2
    state = run.optimizer.state[run.param]
    assert state["d"].isfinite().all()
    assert state["prev_flat_grad"].isfinite().all()


def test_a_line_search_leaves_points_where_the_loss_is_undefined() -> None:
    """Torch's search moves further to where the logarithm is undefined."""

    def barrier(x: Tensor) -> Tensor:
        return (3 * x - x.log()).sum()

    run = new_run(LBFGS, barrier, Parameter(torch.full((3,), 20.0)), lr=50.0, **LINE_SEARCHES[1])
    run.take_steps(5)
    theirs = new_run(
        torch.optim.LBFGS, barrier, Parameter(torch.full((3,), 20.0)), lr=50.0, **LINE_SEARCHES[1]
    )

    minimum = torch.full((3,), 1 / 3)
    assert torch.allclose(run.param, minimum, atol=1e-3)
    assert not torch.allclose(theirs.take_steps(5)[-1].param, minimum, atol=100)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
def test_training_continues_after_a_closure_that_raised(
    options: dict[str, Any], calls: int
) -> None:
    """After an error in a line search, the parameters are those at the start of the search."""
    run = new_run(LBFGS, rosenbrock(3), start_point(3), lr=0.01, max_iter=4, **options)
    run.take_steps(1)
    original_function, seen = run.function, [run.param.detach().clone()]

    def failing(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        if len(seen) == calls + 2:
            raise KeyboardInterrupt
        return original_function(x)

    run.function = failing
    with pytest.raises(KeyboardInterrupt):
        run.take_steps(1)
    searching = bool(options) and calls > 0
    assert torch.equal(run.param, seen[-1]) != searching
    run.function = original_function
    expected = new_run(
        LBFGS, rosenbrock(3), start_point(3), lr=0.01, max_iter=4, **options
    ).take_steps(60)
    assert run.take_steps(60)[-1].loss < 1.1 * expected[-1].loss + 1e-9


def test_a_step_after_a_closure_that_raised_visits_the_same_points() -> None:
    """Without a line search, the step after the error skips no point and repeats none."""
    uninterrupted = new_run(LBFGS, rosenbrock(3), start_point(3), lr=0.01, max_iter=30)
    expected = record_points(uninterrupted)
    uninterrupted.take_steps(1)
    interrupted = new_run(LBFGS, rosenbrock(3), start_point(3), lr=0.01, max_iter=30)
    points = record_points(interrupted)
    original_function = interrupted.function

    def failing(x: Tensor) -> Tensor:
        if len(points) == 7:
            raise KeyboardInterrupt
        return original_function(x)

    interrupted.function = failing
    with pytest.raises(KeyboardInterrupt):
        interrupted.take_steps(1)
    interrupted.function = original_function
    interrupted.take_steps(1)

    assert torch.allclose(torch.stack(points[:20]), torch.stack(expected[:20]), rtol=1e-12)


def record_points(run: Any) -> list[Tensor]:
    """Return a list that gets every point at which the function is evaluated from now on."""
    points: list[Tensor] = []
    function = run.function

    def evaluate_and_record(x: Tensor) -> Tensor:
        value = function(x)
        points.append(x.detach().clone())
        return value  # type: ignore[no-any-return]

    run.function = evaluate_and_record
    return points


def test_a_conjugated_gradient_counts_as_its_value() -> None:
    """Torch's LBFGS cannot view a conjugated gradient as real."""
    results = []
    for resolved in (False, True):
        param = Parameter(torch.ones(3, dtype=torch.complex128))
        grad = (torch.arange(3) + 0.5j).to(torch.complex128).conj()
        param.grad = grad.resolve_conj() if resolved else grad
        assert param.grad.is_conj() != resolved
        LBFGS([param], max_iter=1).step(lambda: 1.0)
        results.append(param.detach())

    assert torch.equal(*results)


def test_an_iteration_with_a_step_below_the_tolerance_is_the_last() -> None:
    """`tolerance_change` bounds the step, although the loss changes by more."""
    calls = []
    for cls in (LBFGS, torch.optim.LBFGS):
        options = {"lr": 1e-9, "tolerance_change": 1e-8}
        steep = new_run(cls, lambda x: 1e3 * (x * x).sum(), start_point(4), **options)
        steep.take_steps(1)
        calls.append(steep.calls)

    assert calls == [2, 2]
