"""Test LBFGS with parameters and gradients of every kind, NaN, and closures that raise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from optim.lbfgs_problems import distance, quadratic, rosenbrock, run, start
from torch import Tensor
from torch.nn import Parameter

from optgen.optim import LBFGS

LINE_SEARCHES = [{}, {"line_search_fn": "strong_wolfe"}]


def descended(cls: Any, params: list[Parameter], loss: Any, steps: int = 3, **options: Any) -> Any:
    """Return (parameters, losses) after some steps."""
    optimizer = cls(params, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        value = loss(params)
        value.backward()
        return value

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    return [param.detach().clone() for param in params], losses


def bowl(params: list[Parameter]) -> Tensor:
    """Return a skewed loss of real and complex parameters, with its minimum away from 0."""
    total = torch.zeros((), dtype=torch.float64)
    for index, param in enumerate(params):
        real = torch.view_as_real(param) if param.is_complex() else param
        weights = torch.linspace(0.3, 2, real.numel(), dtype=torch.float64).view(real.shape)
        total = total + (weights * (real - 0.5 - index).double() ** 2).sum()
        total = total + 0.1 * (real.double() ** 4).sum()
    return total


def several_shapes() -> list[Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 3), (), (4,), (0,), (2, 1, 3)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [Parameter(tensor) for tensor in tensors]


@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
def test_parameters_of_several_shapes_end_as_torchs(options: dict[str, Any]) -> None:
    ours, losses = descended(LBFGS, several_shapes(), bowl, lr=0.2, **options)
    theirs, expected = descended(torch.optim.LBFGS, several_shapes(), bowl, lr=0.2, **options)

    assert losses == pytest.approx(expected, rel=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
def test_complex_parameters_end_as_torchs(options: dict[str, Any]) -> None:
    """Complex parameters are stepped as pairs of reals, beside a real one."""

    def params() -> list[Parameter]:
        torch.manual_seed(1)
        return [
            Parameter(torch.randn(3, 2, dtype=torch.complex128)),
            Parameter(torch.randn(2, dtype=torch.float64)),
        ]

    ours, _ = descended(LBFGS, params(), bowl, lr=0.2, **options)
    theirs, _ = descended(torch.optim.LBFGS, params(), bowl, lr=0.2, **options)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-12, atol=1e-12)


def test_float32_beside_float64_ends_as_torchs() -> None:
    """Both are in one float64 vector, as in torch."""

    def params() -> list[Parameter]:
        return [Parameter(torch.ones(3)), Parameter(torch.ones(4, dtype=torch.float64))]

    ours, _ = descended(LBFGS, params(), bowl, lr=0.2)
    theirs, _ = descended(torch.optim.LBFGS, params(), bowl, lr=0.2)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert torch.allclose(mine, other, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_computed_in_float32(dtype: torch.dtype) -> None:
    """A history in 16 bits cannot distinguish one step from the next."""
    params = [Parameter(torch.tensor([2.0, -1.0, 0.25]).to(dtype))]
    [ended], losses = descended(LBFGS, params, bowl, steps=4, line_search_fn="strong_wolfe")
    [exact], _ = descended(
        LBFGS, [Parameter(params[0].detach().double())], bowl, line_search_fn="strong_wolfe"
    )

    assert ended.dtype == dtype
    assert losses[-1] < losses[0]
    assert distance(ended.double(), exact) < 2 * torch.finfo(dtype).eps


def test_channels_last_parameters_end_as_contiguous_ones() -> None:
    """torch's LBFGS cannot flatten the gradients of such parameters."""
    torch.manual_seed(0)
    plain = Parameter(torch.randn(2, 3, 4, 5, dtype=torch.float64))
    strided = Parameter(plain.detach().clone(memory_format=torch.channels_last))
    [expected], _ = descended(LBFGS, [plain], bowl, lr=0.2)
    [found], _ = descended(LBFGS, [strided], bowl, lr=0.2)

    assert strided.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, expected)


def test_no_gradient_counts_as_zeros() -> None:
    results = []
    for cls in (LBFGS, torch.optim.LBFGS):
        params = [Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(3)]
        moved, _ = descended(cls, params, lambda params: bowl(params[::2]), lr=0.2)
        results.append(moved)
    ours, theirs = results

    assert torch.equal(ours[1], torch.ones(3, dtype=torch.float64))
    assert all(map(torch.allclose, ours, theirs))


def test_sparse_gradients_are_made_dense() -> None:
    def stepped(cls: Any, sparse: bool) -> Tensor:
        param = Parameter(torch.ones(4, 3, dtype=torch.float64))
        optimizer = cls([param], lr=0.2)

        def closure() -> Tensor:
            loss = bowl([param])
            [grad] = torch.autograd.grad(loss, param)
            grad = grad * torch.tensor([1, 0, 1, 0], dtype=torch.float64)[:, None]
            param.grad = grad.to_sparse() if sparse else grad
            return loss

        optimizer.step(closure)
        return param.detach()

    found = stepped(LBFGS, sparse=True)
    assert torch.equal(found, stepped(LBFGS, sparse=False))
    assert torch.allclose(found, stepped(torch.optim.LBFGS, sparse=True), rtol=1e-12)


def test_a_parameter_given_twice_moves_twice() -> None:
    results = []
    for cls in (LBFGS, torch.optim.LBFGS):
        param = Parameter(torch.ones(3, dtype=torch.float64))
        with pytest.warns(UserWarning, match="duplicate parameters"):
            [moved, _], _ = descended(cls, [param, param], lambda params: bowl(params[:1]), lr=0.05)
        results.append(moved)

    assert torch.allclose(*results, rtol=1e-12)


def test_parameters_on_two_devices_are_refused() -> None:
    optimizer = LBFGS([Parameter(torch.ones(2)), Parameter(torch.ones(2, device="meta"))])
    with pytest.raises(RuntimeError, match="must be on one device; these are on cpu and meta"):
        optimizer.step(lambda: 1.0)


def test_a_step_without_elements_returns_the_loss() -> None:
    """torch raises an error about an empty maximum."""
    assert LBFGS([Parameter(torch.ones(0))]).step(lambda: 1.5) == 1.5


@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(value: float, options: Any) -> None:
    """torch's LBFGS makes every parameter NaN, after all the calls that it may make."""
    optimizing = run(LBFGS, quadratic(4), start(4), **options)
    optimizing.steps(1)
    before, calls = optimizing.param.detach().clone(), optimizing.calls
    healthy, optimizing.function = optimizing.function, lambda x: (x * value).sum()
    optimizing.steps(1)

    assert torch.equal(optimizing.param, before)
    assert optimizing.calls == calls + 1
    optimizing.function = healthy
    assert optimizing.steps(3)[-1][2].isfinite().all()


def test_a_step_into_nan_is_undone() -> None:
    """Without a line search, the closure shows the NaN only after the step."""
    optimizing = run(LBFGS, lambda x: x.sqrt().sum(), Parameter(torch.tensor([0.5])), lr=10.0)
    optimizing.steps(1)

    assert optimizing.param.isfinite().all()
    assert optimizing.calls == 2
    state = optimizing.optimizer.state[optimizing.param]
    assert state["d"].isfinite().all()
    assert state["prev_flat_grad"].isfinite().all()


def test_a_line_search_returns_from_an_undefined_point() -> None:
    """Torch's search moves further outwards where the logarithm is not defined."""

    def barrier(x: Tensor) -> Tensor:
        return (3 * x - x.log()).sum()

    optimizing = run(LBFGS, barrier, Parameter(torch.full((3,), 20.0)), lr=50.0, **LINE_SEARCHES[1])
    optimizing.steps(5)
    theirs = run(
        torch.optim.LBFGS, barrier, Parameter(torch.full((3,), 20.0)), lr=50.0, **LINE_SEARCHES[1]
    )

    minimum = torch.full((3,), 1 / 3)
    assert torch.allclose(optimizing.param, minimum, atol=1e-3)
    assert not torch.allclose(theirs.steps(5)[-1][2], minimum, atol=100)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
@pytest.mark.parametrize("options", LINE_SEARCHES, ids=str)
def test_training_continues_after_a_closure_that_raised(
    options: dict[str, Any], calls: int
) -> None:
    """An error during a line search resets the parameters to the start of the search."""
    optimizing = run(LBFGS, rosenbrock(3), start(3), lr=0.01, max_iter=4, **options)
    optimizing.steps(1)
    healthy, seen = optimizing.function, [optimizing.param.detach().clone()]

    def failing(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        if len(seen) == calls + 2:
            raise KeyboardInterrupt
        return healthy(x)

    optimizing.function = failing
    with pytest.raises(KeyboardInterrupt):
        optimizing.steps(1)
    searching = bool(options) and calls > 0
    assert torch.equal(optimizing.param, seen[-1]) != searching
    optimizing.function = healthy
    expected = run(LBFGS, rosenbrock(3), start(3), lr=0.01, max_iter=4, **options).steps(60)
    assert optimizing.steps(60)[-1][0] < 1.1 * expected[-1][0] + 1e-9


def test_a_step_after_a_closure_that_raised_visits_the_same_points() -> None:
    """This holds without a line search; no point is left out or visited again."""
    whole = run(LBFGS, rosenbrock(3), start(3), lr=0.01, max_iter=30)
    expected = visited(whole)
    whole.steps(1)
    broken = run(LBFGS, rosenbrock(3), start(3), lr=0.01, max_iter=30)
    points = visited(broken)
    healthy = broken.function

    def failing(x: Tensor) -> Tensor:
        if len(points) == 7:
            raise KeyboardInterrupt
        return healthy(x)

    broken.function = failing
    with pytest.raises(KeyboardInterrupt):
        broken.steps(1)
    broken.function = healthy
    broken.steps(1)

    assert torch.allclose(torch.stack(points[:20]), torch.stack(expected[:20]), rtol=1e-12)


def visited(optimizing: Any) -> list[Tensor]:
    """Return a list that gets every point at which the function is evaluated from now on."""
    points: list[Tensor] = []
    function = optimizing.function

    def recorded(x: Tensor) -> Tensor:
        value = function(x)
        points.append(x.detach().clone())
        return value  # type: ignore[no-any-return]

    optimizing.function = recorded
    return points


def test_a_conjugated_gradient_counts_as_its_value() -> None:
    """torch's LBFGS cannot view such a gradient as real."""
    ended = []
    for resolved in (False, True):
        param = Parameter(torch.ones(3, dtype=torch.complex128))
        grad = (torch.arange(3) + 0.5j).to(torch.complex128).conj()
        param.grad = grad.resolve_conj() if resolved else grad
        assert param.grad.is_conj() != resolved
        LBFGS([param], max_iter=1).step(lambda: 1.0)
        ended.append(param.detach())

    assert torch.equal(*ended)


def test_a_step_below_the_tolerance_is_the_last() -> None:
    """The size of the step decides, however much the loss changes."""
    calls = []
    for cls in (LBFGS, torch.optim.LBFGS):
        options = {"lr": 1e-9, "tolerance_change": 1e-8}
        steep = run(cls, lambda x: 1e3 * (x * x).sum(), start(4), **options)
        steep.steps(1)
        calls.append(steep.calls)

    assert calls == [2, 2]
