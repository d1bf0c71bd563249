"""Test optgen.amp.GradScaler: it trains as torch's does, and reads all gradients less often."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from composition.training import LOWERINGS, give_gradients, parameters, params_and_lrs, two_groups
from interpreter import INTERPRETED, outside_interpreter, run_inside
from torch import Tensor

from optgen import amp, compose, modifiers, optim, use_lowering
from optgen.runtime.optimizer import GeneratedOptimizer

Scaler = Callable[..., Any]
SCALE = 8.0
Overflows = dict[int, tuple[int, float]]
"""For some steps: a parameter's index, and the value that an element of its gradient gets."""

COMPOSITIONS: dict[str, tuple[str, tuple[Any, ...], torch.dtype]] = {
    "clipped": ("adamw", (modifiers.clip_norm(0.5),), torch.float32),
    "double": ("adamw", (modifiers.clip_norm(0.5),), torch.float64),
}
if not INTERPRETED:
    COMPOSITIONS |= {
        "without other modifiers": ("lion", (), torch.float32),
        "half": ("adamw", (modifiers.master, modifiers.state_dtype("float32")), torch.float16),
        "bfloat16": ("adamw", (modifiers.kahan,), torch.bfloat16),
        "accumulated": ("adamw", (modifiers.accumulate(2),), torch.float32),
        "zeroed": ("adamw", (modifiers.cautious, modifiers.zero_grad), torch.float32),
        "group state": ("prodigy", (), torch.float32),
        "rows and columns": ("adafactor", (), torch.float32),
    }
OVERFLOWS: dict[str, Overflows] = {
    "no overflow": {},
    "first step": {0: (0, torch.inf)},
    "last parameter": {3: (-1, -torch.inf)},
    "first steps, a later step": {0: (2, torch.nan), 1: (1, torch.inf), 4: (-1, torch.nan)},
}


class CountingScaler(amp.GradScaler):
    """Our scaler. It counts how often it reads all gradients."""

    reads = 0

    def _unscale_grads_(self, *args: Any) -> Any:
        self.reads += 1
        return super()._unscale_grads_(*args)


def new_optimizer(cls: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    groups = two_groups(parameters(dtype=dtype))
    if issubclass(cls, GeneratedOptimizer) and cls.rule.equal_or_0:  # such a rule takes one rate
        groups[1]["lr"] = groups[0]["lr"]
    return cls(groups, **options)


def skipping_class(base: str = "adamw", *parts: Any) -> Any:
    """Return a composition that skips steps with nonfinite gradients."""
    return compose(base, *parts, modifiers.skip_nonfinite)


def new_scaler(scaler_class: Scaler, scale: float = SCALE) -> Any:
    scaler = scaler_class("cpu", init_scale=scale, growth_interval=2)
    scaler.scale(torch.zeros(()))
    return scaler


def give_scaled_gradients(optimizer: Any, scale: float, seed: int, overflows: Overflows) -> None:
    """Set scaled gradients. One of them may overflow."""
    params = [param for param, _ in params_and_lrs(optimizer)]
    give_gradients(params, seed)
    for param in params:
        assert param.grad is not None
        param.grad.mul_(scale)
    if seed in overflows:
        index, value = overflows[seed]
        grad = params[index].grad
        assert grad is not None
        grad.view(-1)[-1] = value


def train(scaler: Any, optimizer: Any, overflows: Overflows) -> list[Any]:
    """Take 6 steps. Return parameters, states and the scaler's checkpoint after each step."""
    results = []
    for seed in range(6):
        give_scaled_gradients(optimizer, scaler.get_scale(), seed, overflows)
        scaler.step(optimizer)
        scaler.update()
        params = [param.detach().clone() for param, _ in params_and_lrs(optimizer)]
        results.append((params, copy.deepcopy(optimizer.state_dict()), scaler.state_dict()))
    return results


def assert_same(ours: object, theirs: object) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("overflows", OVERFLOWS.values(), ids=OVERFLOWS)
@pytest.mark.parametrize("composition", COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_training_equals_that_with_torchs_scaler(
    composition: tuple[str, tuple[Any, ...], torch.dtype], overflows: Overflows, lowering: str
) -> None:
    """Parameters, states, step counts, the scale and its growth tracker have equal bits."""
    base, added, dtype = composition
    cls = skipping_class(base, *added)
    with use_lowering(lowering):
        theirs = train(
            new_scaler(torch.amp.GradScaler), new_optimizer(cls, dtype, fused=True), overflows
        )
        ours = train(
            scaler := new_scaler(CountingScaler), new_optimizer(cls, dtype, fused=True), overflows
        )
    assert_same(ours, theirs)
    assert scaler.reads == 0


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_without_fused_equals_that_with_torchs_scaler(dtype: torch.dtype) -> None:
    """Torch's scaler skips the first steps without a call of `step`, so it creates no states."""
    cls = skipping_class("adamw", modifiers.clip_norm(0.5))
    overflows = OVERFLOWS["first steps, a later step"]
    theirs = train(new_scaler(torch.amp.GradScaler), new_optimizer(cls, dtype), overflows)
    ours = train(scaler := new_scaler(CountingScaler), new_optimizer(cls, dtype), overflows)
    assert scaler.reads == 0
    assert_same(ours[2:], theirs[2:])
    for (params, checkpoint, scaler_state), (their_params, _, their_scaler_state) in zip(
        ours[:2], theirs, strict=False
    ):
        assert_same([params, scaler_state], [their_params, their_scaler_state])
        assert not any(
            value.any() for state in checkpoint["state"].values() for value in state.values()
        )


@outside_interpreter
def test_only_the_step_reads_gradients() -> None:
    optimizer = new_optimizer(skipping_class())
    scaler = new_scaler(CountingScaler)
    for seed in range(3):
        give_scaled_gradients(optimizer, SCALE, seed, {1: (1, torch.inf)})
        scaler.step(optimizer)
        grads = [param.grad for param, _ in params_and_lrs(optimizer)]
        scaler.update(SCALE)
    assert scaler.reads == 0
    expected = parameters(dtype=torch.float32)
    give_gradients(expected, 2)
    assert_same(grads, [param.grad for param in expected])  # unscaled in place, as by torch


WITHOUT_CHECK: dict[str, Callable[[], Any]] = {
    "torch's": lambda: new_optimizer(torch.optim.AdamW, fused=True),
    "no check in the rule": lambda: new_optimizer(optim.AdamW, fused=True),
    "a norm, and no check": lambda: new_optimizer(
        compose("adamw", modifiers.clip_norm(1.0)), fused=True
    ),
    "8 bits": lambda: new_optimizer(skipping_class("adamw", modifiers.quantized())),
    "whole matrices": lambda: skipping_class("muon")([parameters()[0]]),
    "differentiable": lambda: skipping_class()(
        two_groups([param.detach() for param in parameters()]), differentiable=True
    ),
}


@outside_interpreter
@pytest.mark.parametrize("make", WITHOUT_CHECK.values(), ids=WITHOUT_CHECK)
def test_the_scaler_reads_gradients_for_optimizers_without_a_check(make: Callable[[], Any]) -> None:
    scaler, optimizer = new_scaler(CountingScaler), make()
    scaler_classes = (torch.amp.GradScaler, CountingScaler)
    runs = [
        train(new_scaler(scaler_class), make(), {1: (0, torch.inf)})
        for scaler_class in scaler_classes
    ]
    assert_same(*runs)
    give_scaled_gradients(optimizer, SCALE, 0, {})
    scaler.step(optimizer)
    assert scaler.reads == 1


@outside_interpreter
@pytest.mark.parametrize("fused", [True, None])
def test_unscale_reads_the_gradients_once_per_step(fused: bool | None) -> None:
    results = []
    for scaler_class in (torch.amp.GradScaler, CountingScaler):
        optimizer, scaler = new_optimizer(skipping_class(), fused=fused), new_scaler(scaler_class)
        for seed in range(4):
            give_scaled_gradients(optimizer, scaler.get_scale(), seed, {2: (-1, torch.inf)})
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([param for param, _ in params_and_lrs(optimizer)], 0.1)
            scaler.step(optimizer)
            scaler.update()
        results.append((optimizer.state_dict(), scaler.state_dict()))
    assert_same(*results)
    assert scaler.reads == 4


@outside_interpreter
@pytest.mark.parametrize("overflowing", [(), (0,), (1,), (2,), (0, 2)])
def test_several_optimizers_may_share_a_scaler(overflowing: Sequence[int]) -> None:
    """Each optimizer skips for its own gradients; the scale falls if any optimizer overflows."""
    results = []
    for scaler_class in (torch.amp.GradScaler, amp.GradScaler):
        optimizers = [
            new_optimizer(skipping_class()),
            new_optimizer(torch.optim.SGD, lr=0.1),
            new_optimizer(skipping_class("lion")),
        ]
        scaler = new_scaler(scaler_class)
        for seed in range(4):
            for number, optimizer in enumerate(optimizers):
                overflows = {2: (0, torch.inf)} if number in overflowing else {}
                give_scaled_gradients(optimizer, scaler.get_scale(), seed, overflows)
                scaler.step(optimizer)
            scaler.update()
        results.append(([each.state_dict() for each in optimizers], scaler.state_dict()))
    assert_same(*results)


@outside_interpreter
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_gradient_that_unscaling_makes_infinite_is_no_overflow(scale: float) -> None:
    """Only a scale below 1 makes it infinite. The scale does not fall; the rule skips the step."""
    runs = []
    for scaler_class in (torch.amp.GradScaler, amp.GradScaler):
        optimizer, scaler = (
            new_optimizer(skipping_class(), fused=True),
            new_scaler(scaler_class, scale),
        )
        for seed in range(3):
            give_scaled_gradients(optimizer, 1.0, seed, {1: (0, 3e38)})
            scaler.step(optimizer)
            scaler.update(scale)
        runs.append((optimizer.state_dict(), scaler.state_dict()))
    assert_same(*runs)
    counts = [state["skipped_steps"].item() for state in optimizer.state.values()]
    assert counts == [float(scale < 1)] * 4


@outside_interpreter
def test_a_large_finite_gradient_is_no_overflow() -> None:
    optimizer, scaler = new_optimizer(skipping_class(), torch.float64), new_scaler(amp.GradScaler)
    give_scaled_gradients(optimizer, SCALE, 0, {0: (0, 1e300)})
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == SCALE
    assert all(state["step"] == 1 for state in optimizer.state.values())


@outside_interpreter
def test_parameters_without_a_gradient_keep_their_counts() -> None:
    """A skipped step undoes its counts before the hook after the step clears gradients."""
    optimizer, scaler = new_optimizer(skipping_class()), new_scaler(amp.GradScaler)
    optimizer.register_step_post_hook(lambda self, *_: self.zero_grad())
    for seed in range(3):
        give_scaled_gradients(optimizer, SCALE, seed, {2: (3, torch.inf)})
        if seed == 1:
            optimizer.param_groups[0]["params"][0].grad = None
        scaler.step(optimizer)
        scaler.update(SCALE)
    counts = [optimizer.state[param]["step"].item() for param, _ in params_and_lrs(optimizer)]
    assert counts == [1, 2, 2, 2]
    assert not any(state["skipped_steps"] for state in optimizer.state.values())


@outside_interpreter
def test_training_continues_from_checkpoints_as_with_torchs_scaler() -> None:
    """Each scaler can load the checkpoint of the other."""
    scaler_classes = (torch.amp.GradScaler, amp.GradScaler)
    results = []
    for first in scaler_classes:
        for second in scaler_classes:
            optimizer, scaler = new_optimizer(skipping_class()), new_scaler(first)
            for seed in range(6):
                if seed == 3:
                    checkpoint = pickle.loads(pickle.dumps(scaler)).state_dict()
                    scaler = new_scaler(second, 2.0)
                    scaler.load_state_dict(checkpoint)
                give_scaled_gradients(optimizer, scaler.get_scale(), seed, {1: (0, torch.inf)})
                scaler.step(optimizer)
                scaler.update()
            results.append((optimizer.state_dict(), scaler.state_dict()))
    for each in results[1:]:
        assert_same(each, results[0])


@outside_interpreter
def test_a_grad_scale_of_the_user_multiplies_the_scale() -> None:
    results = []
    for scaler_class in (torch.amp.GradScaler, CountingScaler):
        optimizer, scaler = new_optimizer(skipping_class(), fused=True), new_scaler(scaler_class)
        give_scaled_gradients(optimizer, 2 * SCALE, 0, {})
        optimizer.grad_scale = torch.tensor(2.0)
        scaler.step(optimizer)
        assert not hasattr(optimizer, "grad_scale")
        results.append(optimizer.state_dict())
    assert_same(*results)
    assert scaler.reads == 0


@outside_interpreter
def test_misuse_raises_torchs_errors() -> None:
    optimizer = new_optimizer(skipping_class())
    unused_scaler = amp.GradScaler("cpu")
    with pytest.raises(AssertionError, match="_scale is None"):
        unused_scaler.step(optimizer)
    scaler = new_scaler(amp.GradScaler)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: 0.0)
    give_scaled_gradients(optimizer, SCALE, 0, {})
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    scaler.update()
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)


@outside_interpreter
def test_a_failed_step_changes_nothing() -> None:
    optimizer, scaler = new_optimizer(skipping_class()), new_scaler(amp.GradScaler)
    give_scaled_gradients(optimizer, SCALE, 0, {})
    param: Tensor = optimizer.param_groups[0]["params"][0]
    optimizer.state[param]["exp_avg"] = torch.zeros(7)
    before = param.detach().clone()
    with pytest.raises(RuntimeError):
        scaler.step(optimizer)
    assert torch.equal(param, before)
    assert not hasattr(optimizer, "grad_scale")
    del optimizer.state[param]
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.state[param]["step"] == 1


@outside_interpreter
def test_a_disabled_scaler_only_steps() -> None:
    scaler = amp.GradScaler("cpu", enabled=False)
    with_scaler, without_scaler = new_optimizer(skipping_class()), new_optimizer(skipping_class())
    for seed in range(3):
        for optimizer in (with_scaler, without_scaler):
            give_scaled_gradients(optimizer, 1.0, seed, {1: (0, torch.nan)})
        scaler.step(with_scaler)
        scaler.update()
        without_scaler.step()
    assert_same(with_scaler.state_dict(), without_scaler.state_dict())
    assert all(state["skipped_steps"] == 1 for state in with_scaler.state.values())
