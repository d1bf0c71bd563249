"""Test optgen.amp.GradScaler: runs with it are runs with torch's, and it checks gradients less."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from composition.training import LOWERINGS, give_gradients, in_groups, members, parameters
from interpreter import INTERPRETED, outside_interpreter, run_inside
from torch import Tensor

from optgen import amp, compose, modifiers, optim, use_lowering

Scaler = Callable[..., Any]
SCALE = 8.0
Places = dict[int, tuple[int, float]]  # by step: a parameter, and the value in its gradient

PARTS: dict[str, tuple[str, tuple[Any, ...], torch.dtype]] = {
    "clipped": ("adamw", (modifiers.clip_norm(0.5),), torch.float32),
    "double": ("adamw", (modifiers.clip_norm(0.5),), torch.float64),
}
if not INTERPRETED:
    PARTS |= {
        "alone": ("lion", (), torch.float32),
        "half": ("adamw", (modifiers.master, modifiers.state_dtype("float32")), torch.float16),
        "bfloat16": ("adamw", (modifiers.kahan,), torch.bfloat16),
        "accumulated": ("adamw", (modifiers.accumulate(2),), torch.float32),
        "zeroed": ("adamw", (modifiers.cautious, modifiers.zero_grad), torch.float32),
        "group state": ("prodigy", (), torch.float32),
        "rows and columns": ("adafactor", (), torch.float32),
    }
OVERFLOWS: dict[str, Places] = {
    "none": {},
    "first step": {0: (0, torch.inf)},
    "last parameter": {3: (-1, -torch.inf)},
    "first steps, later ones": {0: (2, torch.nan), 1: (1, torch.inf), 4: (-1, torch.nan)},
}


class Counting(amp.GradScaler):
    """Our scaler, which counts its reads of all gradients."""

    reads = 0

    def _unscale_grads_(self, *args: Any) -> Any:
        self.reads += 1
        return super()._unscale_grads_(*args)


def made(cls: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    return cls(in_groups(parameters(dtype=dtype)), **options)


def skipping(base: str = "adamw", *parts: Any) -> Any:
    return compose(base, *parts, modifiers.skip_nonfinite)


def scaler_of(cls: Scaler, scale: float = SCALE) -> Any:
    scaler = cls("cpu", init_scale=scale, growth_interval=2)
    scaler.scale(torch.zeros(()))
    return scaler


def give_scaled(optimizer: Any, scale: float, seed: int, places: Places) -> None:
    """Give scaled gradients to the parameters, one of which may overflow."""
    params = [param for param, _ in members(optimizer)]
    give_gradients(params, seed)
    for param in params:
        assert param.grad is not None
        param.grad.mul_(scale)
    if seed in places:
        index, value = places[seed]
        grad = params[index].grad
        assert grad is not None
        grad.view(-1)[-1] = value


def trained(scaler: Any, optimizer: Any, places: Places) -> list[Any]:
    """Return parameters, states and the scaler's checkpoint after each of some steps."""
    results = []
    for seed in range(6):
        give_scaled(optimizer, scaler.get_scale(), seed, places)
        scaler.step(optimizer)
        scaler.update()
        params = [param.detach().clone() for param, _ in members(optimizer)]
        results.append((params, copy.deepcopy(optimizer.state_dict()), scaler.state_dict()))
    return results


def assert_same(ours: object, theirs: object) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("places", OVERFLOWS.values(), ids=OVERFLOWS)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_run_is_that_of_torchs_scaler(
    parts: tuple[str, tuple[Any, ...], torch.dtype], places: Places, lowering: str
) -> None:
    """To the bit: parameters, states, step counts, the scale and its growth tracker."""
    base, added, dtype = parts
    cls = skipping(base, *added)
    with use_lowering(lowering):
        theirs = trained(scaler_of(torch.amp.GradScaler), made(cls, dtype, fused=True), places)
        ours = trained(scaler := scaler_of(Counting), made(cls, dtype, fused=True), places)
    assert_same(ours, theirs)
    assert scaler.reads == 0


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_without_fused_is_that_of_torchs_scaler(dtype: torch.dtype) -> None:
    """In a skipped first step, torch's scaler takes no step at all, so there is no state then."""
    cls = skipping("adamw", modifiers.clip_norm(0.5))
    places = OVERFLOWS["first steps, later ones"]
    theirs = trained(scaler_of(torch.amp.GradScaler), made(cls, dtype), places)
    ours = trained(scaler := scaler_of(Counting), made(cls, dtype), places)
    assert scaler.reads == 0
    assert_same(ours[2:], theirs[2:])
    for (params, packed, of_scaler), (others, _, of_theirs) in zip(ours[:2], theirs, strict=False):
        assert_same([params, of_scaler], [others, of_theirs])
        assert not any(
            value.any() for state in packed["state"].values() for value in state.values()
        )


@outside_interpreter
def test_gradients_are_read_by_the_step_alone() -> None:
    optimizer = made(skipping())
    scaler = scaler_of(Counting)
    for seed in range(3):
        give_scaled(optimizer, SCALE, seed, {1: (1, torch.inf)})
        scaler.step(optimizer)
        grads = [param.grad for param, _ in members(optimizer)]
        scaler.update(SCALE)
    assert scaler.reads == 0
    wanted = parameters(dtype=torch.float32)
    give_gradients(wanted, 2)
    assert_same(grads, [param.grad for param in wanted])  # unscaled in place, as by torch


NOT_SHARED: dict[str, Callable[[], Any]] = {
    "torch's": lambda: made(torch.optim.AdamW, fused=True),
    "no check in the rule": lambda: made(optim.AdamW, fused=True),
    "a norm only": lambda: made(compose("adamw", modifiers.clip_norm(1.0)), fused=True),
    "8 bits": lambda: made(skipping("adamw", modifiers.quantized())),
    "whole matrices": lambda: skipping("muon")([parameters()[0]]),
    "differentiable": lambda: skipping()(
        in_groups([param.detach() for param in parameters()]), differentiable=True
    ),
}


@outside_interpreter
@pytest.mark.parametrize("make", NOT_SHARED.values(), ids=NOT_SHARED)
def test_other_optimizers_go_torchs_way(make: Callable[[], Any]) -> None:
    scaler, optimizer = scaler_of(Counting), make()
    kinds = (torch.amp.GradScaler, Counting)
    runs = [trained(scaler_of(kind), make(), {1: (0, torch.inf)}) for kind in kinds]
    assert_same(*runs)
    give_scaled(optimizer, SCALE, 0, {})
    scaler.step(optimizer)
    assert scaler.reads == 1


@outside_interpreter
@pytest.mark.parametrize("fused", [True, None])
def test_after_unscale_the_check_is_made_already(fused: bool | None) -> None:
    results = []
    for kind in (torch.amp.GradScaler, Counting):
        optimizer, scaler = made(skipping(), fused=fused), scaler_of(kind)
        for seed in range(4):
            give_scaled(optimizer, scaler.get_scale(), seed, {2: (-1, torch.inf)})
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([param for param, _ in members(optimizer)], 0.1)
            scaler.step(optimizer)
            scaler.update()
        results.append((optimizer.state_dict(), scaler.state_dict()))
    assert_same(*results)
    assert scaler.reads == 4


@outside_interpreter
@pytest.mark.parametrize("overflowing", [(), (0,), (1,), (2,), (0, 2)])
def test_several_optimizers_with_one_scaler(overflowing: Sequence[int]) -> None:
    """Each skips for its own gradients, and the scale falls for those of any."""
    results = []
    for kind in (torch.amp.GradScaler, amp.GradScaler):
        listed = [made(skipping()), made(torch.optim.SGD, lr=0.1), made(skipping("lion"))]
        scaler = scaler_of(kind)
        for seed in range(4):
            for number, optimizer in enumerate(listed):
                places = {2: (0, torch.inf)} if number in overflowing else {}
                give_scaled(optimizer, scaler.get_scale(), seed, places)
                scaler.step(optimizer)
            scaler.update()
        results.append(([each.state_dict() for each in listed], scaler.state_dict()))
    assert_same(*results)


@outside_interpreter
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_gradient_that_unscaling_makes_infinite_is_no_overflow(scale: float) -> None:
    """A scale below 1 can do that. torch's scaler does not fall then, and the step counts."""
    runs = []
    for kind in (torch.amp.GradScaler, amp.GradScaler):
        optimizer, scaler = made(skipping(), fused=True), scaler_of(kind, scale)
        for seed in range(3):
            give_scaled(optimizer, 1.0, seed, {1: (0, 3e38)})
            scaler.step(optimizer)
            scaler.update(scale)
        runs.append((optimizer.state_dict(), scaler.state_dict()))
    assert_same(*runs)
    counts = [state["skipped_steps"].item() for state in optimizer.state.values()]
    assert counts == [float(scale < 1)] * 4


@outside_interpreter
def test_a_large_finite_gradient_is_no_overflow() -> None:
    optimizer, scaler = made(skipping(), torch.float64), scaler_of(amp.GradScaler)
    give_scaled(optimizer, SCALE, 0, {0: (0, 1e300)})
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == SCALE
    assert all(state["step"] == 1 for state in optimizer.state.values())


@outside_interpreter
def test_parameters_that_take_no_part_keep_their_counts() -> None:
    """A hook may clear gradients after the step: the counts are undone before."""
    optimizer, scaler = made(skipping()), scaler_of(amp.GradScaler)
    optimizer.register_step_post_hook(lambda self, *_: self.zero_grad())
    for seed in range(3):
        give_scaled(optimizer, SCALE, seed, {2: (3, torch.inf)})
        if seed == 1:
            optimizer.param_groups[0]["params"][0].grad = None
        scaler.step(optimizer)
        scaler.update(SCALE)
    counts = [optimizer.state[param]["step"].item() for param, _ in members(optimizer)]
    assert counts == [1, 2, 2, 2]
    assert not any(state["skipped_steps"] for state in optimizer.state.values())


@outside_interpreter
def test_checkpoints_and_copies_go_on_as_torchs() -> None:
    """Also in a scaler of the other kind."""
    kinds = (torch.amp.GradScaler, amp.GradScaler)
    results = []
    for first in kinds:
        for second in kinds:
            optimizer, scaler = made(skipping()), scaler_of(first)
            for seed in range(6):
                if seed == 3:
                    packed = pickle.loads(pickle.dumps(scaler)).state_dict()
                    scaler = scaler_of(second, 2.0)
                    scaler.load_state_dict(packed)
                give_scaled(optimizer, scaler.get_scale(), seed, {1: (0, torch.inf)})
                scaler.step(optimizer)
                scaler.update()
            results.append((optimizer.state_dict(), scaler.state_dict()))
    for each in results[1:]:
        assert_same(each, results[0])


@outside_interpreter
def test_a_factor_of_the_user_multiplies_the_scale() -> None:
    results = []
    for kind in (torch.amp.GradScaler, Counting):
        optimizer, scaler = made(skipping(), fused=True), scaler_of(kind)
        give_scaled(optimizer, 2 * SCALE, 0, {})
        optimizer.grad_scale = torch.tensor(2.0)
        scaler.step(optimizer)
        assert not hasattr(optimizer, "grad_scale")
        results.append(optimizer.state_dict())
    assert_same(*results)
    assert scaler.reads == 0


@outside_interpreter
def test_errors_are_torchs() -> None:
    optimizer = made(skipping())
    unused = amp.GradScaler("cpu")
    with pytest.raises(AssertionError, match="_scale is None"):
        unused.step(optimizer)
    scaler = scaler_of(amp.GradScaler)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: 0.0)
    give_scaled(optimizer, SCALE, 0, {})
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    scaler.update()
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)


@outside_interpreter
def test_a_failed_step_leaves_nothing_behind() -> None:
    optimizer, scaler = made(skipping()), scaler_of(amp.GradScaler)
    give_scaled(optimizer, SCALE, 0, {})
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
def test_a_disabled_scaler_steps_only() -> None:
    scaler = amp.GradScaler("cpu", enabled=False)
    ours, plain = made(skipping()), made(skipping())
    for seed in range(3):
        for optimizer in (ours, plain):
            give_scaled(optimizer, 1.0, seed, {1: (0, torch.nan)})
        scaler.step(ours)
        scaler.update()
        plain.step()
    assert_same(ours.state_dict(), plain.state_dict())
    assert all(state["skipped_steps"] == 1 for state in ours.state.values())
