"""Test that what cannot be offloaded is refused, with the reason, before anything is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from offload.scripts import network
from offload.training import (
    OPTIONS,
    assert_equal,
    backward,
    master,
    offloaded,
    one_param,
    pinned_bytes,
    train,
    weights,
)
from torch import nn

import optgen
from optgen import compose, modifiers, offload
from optgen.offloading import host_memory
from optgen.offloading.checks import check_gradient

MODES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "forward": {"hide": "forward"},
    "leave": {"gradients": "leave", "clip_norm": None},
    "backward": {"gradients": "leave", "clip_norm": None, "hide": "backward"},
}


def wrong_params() -> list[Any]:
    ones = torch.ones(64)
    return [
        pytest.param(lambda: [nn.Parameter(ones)], "nothing to offload", id="cpu"),
        pytest.param(
            lambda: [one_param(), nn.Parameter(ones)], "1 of group 0: it is on the CPU", id="mixed"
        ),
        pytest.param(lambda: [nn.Parameter(ones.to("meta"))], "on the meta device", id="meta"),
        pytest.param(lambda: [one_param(dtype=torch.float64)], "would round it", id="float64"),
        pytest.param(lambda: [one_param(dtype=torch.complex64)], "it is complex", id="complex"),
        pytest.param(list, "optimizer got an empty parameter list", id="empty"),
        pytest.param(
            lambda: [{"params": p} for p in [one_param()] * 2], "more than one parameter group"
        ),
    ]


@pytest.mark.parametrize(("params", "message"), wrong_params())
def test_parameters_that_are_refused(params: Any, message: str, sim: Any) -> None:
    before = pinned_bytes()
    with pytest.raises(ValueError, match=message):
        offload("adamw", params(), **OPTIONS)
    assert pinned_bytes() == before


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_twice_in_a_group(sim: Any) -> None:
    with pytest.raises(ValueError, match="group 0 lists a parameter twice"):
        offload("adamw", [one_param()] * 2, **OPTIONS)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("muon", "28 to 46 times as long per parameter as AdamW"),
        ("soap", "computes with whole matrices"),
        ("prodigy", "reduces over all parameters"),
        ("adahessian", "takes further inputs"),
        ("sparse_adam", "takes sparse gradients only"),
    ],
)
def test_rules_that_are_refused(rule: str, message: str, sim: Any) -> None:
    with pytest.raises(ValueError, match=message):
        offload(rule, [one_param()], **OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradients": "leave"}, "say clip_norm=1.0, or clip_norm=None"),
        ({"gradients": "go"}, '"stay" or "leave", not \'go\''),
        ({"hide": "now"}, "not 'now'"),
        ({"hide": "forward"}, "pass the model as module="),
        ({"hide": "backward"}, 'gradients="leave"'),
        ({"gradients": "leave", "hide": "backward", "clip_norm": 1.0}, "cannot clip by the norm"),
        (
            {"gradients": "leave", "hide": "backward", "clip_norm": None, "accumulation": 2},
            "cannot accumulate",
        ),
        ({"accumulation": 2}, "is counted only with"),
        ({"clip_norm": 0.0}, "clip_norm must be greater than 0"),
        ({"bucket_bytes": 100}, "a multiple of 64"),
        ({"slots": 0}, "slots must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"time_limit": 0}, "time_limit must be greater than 0"),
        ({"lr": -1.0}, "Invalid learning rate"),
    ],
)
def test_choices_that_are_refused(options: dict[str, Any], message: str, sim: Any) -> None:
    with pytest.raises(ValueError, match=message):
        offload("adamw", [one_param()], **{**OPTIONS, **options})


def test_what_is_no_rule_is_refused(sim: Any) -> None:
    with pytest.raises(TypeError, match=r"optgen\.optim\.AdamW has the same arguments"):
        offload(torch.optim.AdamW, [one_param()], **OPTIONS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rule",
    [
        optgen.optim.AdamW,
        "AdamW",
        compose("adamw", modifiers.master),
        compose("adamw", modifiers.cautious, modifiers.state_dtype("bfloat16")),
    ],
    ids=["class", "name", "with master", "with others"],
)
def test_rules_of_any_kind_are_taken(rule: Any, sim: Any) -> None:
    with offload(rule, [one_param()], **OPTIONS) as optimizer:
        assert all("master" in each.states for each in optimizer._host_params.values())


def test_compressed_states(sim: Any) -> None:
    rule = compose("adamw", modifiers.quantized(min_elements=1))
    with offload(rule, [one_param(512)], **OPTIONS) as optimizer:
        assert optimizer.report().host_bytes < 512 * 7


def test_too_little_memory_is_told_before_anything_is_allocated(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 10_000)
    before = pinned_bytes()
    with pytest.raises(MemoryError, match=r"(?s)10,000 are available.*exp_avg .*master .*pinned"):
        offload("adamw", [one_param(1000)], **OPTIONS)
    assert pinned_bytes() == before


def test_too_little_pinned_memory(sim: Any) -> None:
    before = pinned_bytes()
    sim.configure(pinned_limit=before + 5000)
    with pytest.raises(MemoryError, match="cannot pin 8,192 bytes, which are 4 slots"):
        offloaded(network("sim"))
    assert pinned_bytes() == before


def test_a_gradient_of_another_dtype_is_refused(sim: Any) -> None:
    param = one_param(dtype=torch.bfloat16)
    with offload("adamw", [param], **OPTIONS) as optimizer:
        param.grad_dtype = None  # type: ignore[attr-defined]
        param.grad = torch.ones(64, device="sim")
        with pytest.raises(TypeError, match=r"the gradient of .* is of torch\.float32"):
            optimizer.step()


def test_one_backward_pass_too_many(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, gradients="leave", clip_norm=None, accumulation=2) as optimizer:
        backward(model)
        backward(model)
        with pytest.raises(RuntimeError, match="has gradient number 3 since the last step"):
            backward(model)
        optimizer.zero_grad()
        backward(model)
        optimizer.step()


def test_parameters_that_were_replaced(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, module=model):
        model[0].bias = nn.Parameter(torch.zeros_like(model[0].bias))
        with pytest.raises(RuntimeError, match="1 parameters of the model were replaced"):
            backward(model)


def test_an_invalid_rate_changes_nothing(sim: Any) -> None:
    model = network("sim")
    with offloaded(model) as optimizer:
        optimizer.param_groups[0]["lr"] = "fast"
        backward(model)
        with pytest.raises(TypeError, match="lr must be a number"):
            optimizer.step()

        assert not optimizer.state


@pytest.mark.parametrize("mode", MODES)
def test_a_closure_runs_once_in_every_mode(mode: str, sim: Any) -> None:
    """Lightning calls step with a closure, which resets gradients and runs both passes."""
    ours, theirs = network("sim"), network()
    module = {"module": ours} if mode == "forward" else {}
    pairs = [
        (ours, offloaded(ours, **MODES[mode], **module)),
        (theirs, master("adamw")(theirs.parameters(), lr=1e-2)),
    ]
    calls = []
    for model, optimizer in pairs:
        for index in range(3):

            def closure(model: Any = model, index: int = index, own: Any = optimizer) -> float:
                calls.append(index)
                own.zero_grad()
                backward(model, index)
                return 0.5

            assert optimizer.step(closure) == 0.5
    pairs[0][1].synchronize()
    assert calls == [0, 1, 2] * 2
    assert_equal(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_a_closure_that_fails_changes_nothing(mode: str, sim: Any) -> None:
    model = network("sim")
    module = {"module": model} if mode == "forward" else {}
    with offloaded(model, **MODES[mode], **module) as optimizer:
        before = weights(model)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        optimizer.step()
        optimizer.synchronize()

        assert all(map(torch.equal, before, weights(model)))
        assert not optimizer.state


def test_a_sparse_gradient_is_refused() -> None:
    """The simulated device has no sparse tensors, so the check is called by itself."""
    param = nn.Parameter(torch.ones(8, 2))
    with pytest.raises(RuntimeError, match="the gradient of x is sparse"):
        check_gradient(param, torch.ones(8, 2).to_sparse(), lambda: "x")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own tracing
def test_compiled_autograd(sim: Any) -> None:
    """Gradients leave as in any other pass; steps within the pass are refused."""
    from torch._dynamo import compiled_autograd

    compiler = torch.compile(backend="eager")
    ours, theirs = network("sim"), network()
    with compiled_autograd._enable(compiler), offloaded(ours, **MODES["leave"]) as optimizer:
        train(ours, optimizer, 2)
    train(theirs, master("adamw")(theirs.parameters(), lr=1e-2), 2)
    assert_equal(ours, theirs)

    with (
        compiled_autograd._enable(compiler),
        offloaded(ours, **MODES["backward"]),
        pytest.raises(RuntimeError, match="a backward pass of compiled autograd ends"),
    ):
        backward(ours)
