"""Test what surrounds a step with extra inputs: autograd, capture, checkpoints, hooks, programs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from interpreter import outside_interpreter
from lowerings.capture import capture_on_cpu
from runtime.extra_inputs.rules_with_inputs import (
    ELEMENTWISE,
    SOPHIA,
    TWO_INPUTS,
    check_close,
    class_of,
    estimate,
    gradient,
    parameters,
)

import optgen


@outside_interpreter
def test_autograd_follows_an_input() -> None:
    param = torch.zeros(3, dtype=torch.float64)
    optimizer = class_of(ELEMENTWISE)([param], lr=0.5, differentiable=True)
    param.grad = torch.ones(3, dtype=torch.float64)
    extra_input = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
    optimizer.step(first=[extra_input])

    assert param.tolist() == [-0.75] * 3
    param.sum().backward()
    assert extra_input.grad is not None
    assert extra_input.grad.tolist() == [-0.25] * 3


@outside_interpreter
@pytest.mark.parametrize("text", [TWO_INPUTS, ELEMENTWISE], ids=["sums", "elements"])
def test_a_capturable_step_equals_an_ordinary_one(text: str) -> None:
    """The host reads no number of an input, because a captured graph cannot."""
    results = []
    for options in ({}, {"capturable": True}):
        params = parameters()
        optimizer = class_of(text)(params, **options)
        for step in range(3):
            for param in params:
                param.grad = gradient(param, step)
            inputs = [estimate(param, step) if step != 1 else None for param in params]
            with (
                capture_on_cpu(forbid_host_reads="capturable" in options),
                optgen.use_lowering("foreach"),
            ):
                optimizer.step(first=inputs)
        results.append(params)
    check_close(results[1], [param.detach() for param in results[0]])


@outside_interpreter
def test_a_step_without_inputs_is_cached_and_one_with_inputs_is_not() -> None:
    params = parameters()
    optimizer: Any = SOPHIA(params)
    for step in range(6):
        for param in params:
            param.grad = gradient(param, step)
        hessian = [estimate(param, step) for param in params] if step == 3 else None
        optimizer.step(hessian=hessian)
        assert (optimizer._context.cached_step is None) is (step == 3)
        assert not optimizer._context.extra_inputs


@outside_interpreter
def test_checkpoints_and_groups_store_no_inputs() -> None:
    params = parameters()
    optimizer: Any = SOPHIA(params)
    for param in params:
        param.grad = gradient(param, 0)
    optimizer.step(hessian=[estimate(param, 0) for param in params])
    saved = copy.deepcopy(optimizer.state_dict())

    assert set(saved["state"][0]) == {"exp_avg", "hessian"}
    assert not [key for key in saved["param_groups"][0] if key.startswith("given")]
    copied = copy.deepcopy(optimizer)
    copied.load_state_dict(saved)
    copied.step(hessian=None)


@outside_interpreter
def test_hooks_and_the_closure_run_once() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer: Any = SOPHIA([param])
    events: list[Any] = []
    optimizer.register_step_pre_hook(lambda _, args, kwargs: events.append(sorted(kwargs)))
    optimizer.register_step_post_hook(lambda *_: events.append("after"))

    def closure() -> float:
        param.grad = torch.ones(2)
        events.append("closure")
        return 2.5

    assert optimizer.step(closure, hessian=[torch.ones(2)]) == 2.5
    assert events == [["hessian"], "closure", "after"]
    assert optimizer.state[param]["hessian"].abs().sum() > 0


WITH_PROGRAMS = (
    ELEMENTWISE.replace("Elementwise", "WithPrograms")
    + """

@WithPrograms.train
def subtract_m(p, m, /):
    p = p - m


@WithPrograms.eval
def add_m(p, m, /):
    p = p + m
"""
)


@outside_interpreter
def test_a_class_may_have_extra_inputs_and_programs() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = class_of(WITH_PROGRAMS)([param], lr=0.5)
    optimizer.step(first=[torch.ones(3)])
    assert param.tolist() == [0.5] * 3
    optimizer.eval()
    assert param.tolist() == [2.5] * 3
    with pytest.raises(RuntimeError, match="eval mode"):
        optimizer.step(first=[torch.ones(3)])
    optimizer.train()
    optimizer.step(second=[torch.ones(3)])
