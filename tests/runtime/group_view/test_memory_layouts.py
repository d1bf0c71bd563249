"""Test views of parameters, gradients and states in any memory layout, which may be copied."""

from __future__ import annotations

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.capture import capture_on_cpu
from runtime.group_view.viewed_and_plain import (
    LOWERINGS,
    OPTIONS,
    Layout,
    ViewedAndPlain,
    channels_last,
    check_close,
    class_named,
    last_axes_transposed,
    unchanged,
    with_gaps,
)
from torch.nn import Parameter

from optgen import use_lowering
from optgen.optim import Adafactor


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


LAYOUTS = [channels_last, last_axes_transposed, with_gaps]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["Adafactor"] + ([] if INTERPRETED else ["HeadMuon", "LAMB"]))
def test_memory_that_cannot_be_viewed_is_copied(name: str, lowering: str) -> None:
    """Parameters, gradients and states are copied, and written back, whatever their layout."""
    pairs = [(layout, unchanged) for layout in LAYOUTS]
    pairs += [(unchanged, layout) for layout in LAYOUTS] + [(channels_last, channels_last)]
    for layouts in pairs[::3] if INTERPRETED else pairs:
        run = ViewedAndPlain(
            class_named(name), OPTIONS[name], [(4, 3, 2, 5), (2, 6, 5, 2)], (4, -1), layouts=layouts
        )
        strides = [param.stride() for param in run.ours]
        for step in range(2 if INTERPRETED else 3):
            run.step(lowering, missing=0 if step == 1 else None)
        run.check(1e-12)
        assert [param.stride() for param in run.ours] == strides


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_viewed_step_advances_the_parameters_version(lowering: str) -> None:
    for layout in (unchanged, channels_last):
        param = Parameter(layout(torch.ones(2, 3, 4, 5)))
        param.grad, before = torch.ones_like(param), param._version
        with use_lowering(lowering):
            Adafactor([{"params": [param], "view": (2, -1)}]).step()
        assert param._version > before


@pytest.mark.skipif(INTERPRETED, reason="the for-loop takes a parameter that is listed twice")
def test_a_parameter_listed_twice_is_stepped_twice() -> None:
    """The second update starts from the result of the first, even if the view is a copy."""
    for layout in (unchanged, channels_last):
        results = []
        for view in ((2, -1), None):
            param = Parameter(layout(torch.linspace(-1, 1, 24).reshape(2, 3, 2, 2)))
            if view is None:
                param = Parameter(param.detach().reshape(2, -1).clone())
            with pytest.warns(UserWarning, match="duplicate parameters"):
                optimizer = Adafactor([{"params": [param, param], "view": view}], lr=0.1)
            for _ in range(3):
                param.grad = torch.ones_like(param)
                optimizer.step()
            results.append(param.detach().reshape(2, -1))
        check_close(*results, 1e-6)


@pytest.mark.skipif(INTERPRETED, reason="torch's operations take the step")
@pytest.mark.parametrize("layout", [unchanged, channels_last])
def test_autograd_follows_a_viewed_step(layout: Layout) -> None:
    """The gradients of the learning rate and of the start equal those of a plain parameter."""
    results = []
    start = torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(2, 3, 2, 2)
    for shape, view in [((2, 3, 2, 2), (2, -1)), ((2, 12), None)]:
        lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        base = start.reshape(shape) if view is None else layout(start.clone())
        base = base.clone().requires_grad_()
        param = base.clone()
        param.retain_grad()
        param.grad = torch.cos(start.reshape(shape))
        optimizer = Adafactor([{"params": [param], "view": view}], lr=lr, differentiable=True)
        optimizer.step()
        param.sin().sum().backward()
        results.append([lr.grad, base.grad.reshape(2, -1), param.detach().reshape(2, -1)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(INTERPRETED, reason="the functional form is the for-loop's")
def test_a_differentiable_step_refuses_a_leaf() -> None:
    for layout in (unchanged, channels_last):
        param = Parameter(layout(torch.ones(2, 3, 2, 2)))
        param.grad, before = torch.ones_like(param), param.detach().clone()
        optimizer = Adafactor([{"params": [param], "view": (2, -1)}], differentiable=True)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            optimizer.step()
        assert torch.equal(param.detach(), before)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("layout", [unchanged, last_axes_transposed])
def test_a_gradient_scaler_leaves_unscaling_to_the_step(lowering: str, layout: Layout) -> None:
    """The step unscales gradients in place, even those it copies; an overflow skips the step."""
    run = ViewedAndPlain(Adafactor, {"lr": 0.1, "fused": None}, [(6, 8)], (2, 3, -1), torch.float32)
    for overflow in (0.0, 1.0, 0.0):
        (ours,), (plain,) = run.ours, run.plain
        grad = torch.linspace(-8, 8, 48).reshape(6, 8)
        ours.grad, plain.grad = layout(grad.clone()), grad.reshape(2, 3, 8).clone()
        for optimizer in (run.optimizer, run.reference):
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(overflow)
            with use_lowering(lowering):
                optimizer.step()
        assert torch.equal(ours.grad, grad if overflow else grad / 4)
    run.check(1e-6)


@pytest.mark.skipif(INTERPRETED, reason="the functional form is the for-loop's")
@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("layout", [unchanged, last_axes_transposed])
def test_a_capturable_step_reads_no_number_on_the_host(lowering: str, layout: Layout) -> None:
    """The results stay those of a plain parameter."""
    options = {"lr": 0.1, "capturable": True}
    run = ViewedAndPlain(Adafactor, options, [(6, 8)], (2, 3, -1), layouts=(layout, unchanged))
    for forbid_host_reads in (False, True, True):
        with capture_on_cpu(forbid_host_reads):
            run.step(lowering)
    run.check(1e-12)
