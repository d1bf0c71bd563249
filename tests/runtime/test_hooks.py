"""Test hooks around a step, and the profiler's record of a step."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime.batch.batches import parameter_with_gradient
from torch.optim import optimizer as torch_optimizer

from optgen.optim import Adam

pytestmark = pytest.mark.usefixtures("each_lowering")
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


@pytest.mark.parametrize("cls", [Adam, torch.optim.Adam])
def test_hooks_run_in_torchs_order_with_torchs_arguments(cls: Any) -> None:
    calls: list[Call] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda optimizer, args, kwargs: calls.append((name, args[1:], kwargs))

    optimizer = cls([parameter_with_gradient()])
    handles = [
        optimizer.register_step_pre_hook(hook("pre")),
        optimizer.register_step_post_hook(hook("post")),
        torch_optimizer.register_optimizer_step_pre_hook(hook("global pre")),
        torch_optimizer.register_optimizer_step_post_hook(hook("global post")),
    ]
    closure = lambda: 1.5  # noqa: E731
    try:
        assert optimizer.step() is None
        assert optimizer.step(closure) == 1.5
        assert optimizer.step(closure=closure) == 1.5
    finally:
        for handle in handles:
            handle.remove()
    optimizer.step()

    expected: list[Call] = []
    for args, kwargs in (((), {}), ((closure,), {}), ((), {"closure": closure})):
        names = ("global pre", "pre", "post", "global post")
        expected += [(name, args, kwargs) for name in names]
    assert calls == expected


def test_a_pre_hook_may_replace_arguments_in_torchs_form_only() -> None:
    optimizer = Adam([parameter_with_gradient()])
    handle = optimizer.register_step_pre_hook(lambda self, args, kwargs: ((self, lambda: 7.0), {}))
    assert optimizer.step() == 7.0
    handle.remove()

    optimizer.register_step_pre_hook(lambda self, args, kwargs: 3)
    with pytest.raises(RuntimeError, match=r"must return None or a tuple of .*, but got 3"):
        optimizer.step()


def test_a_subclass_with_its_own_step_runs_hooks_once() -> None:
    class AdamWithOwnStep(Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    Adam([parameter_with_gradient()]).step()
    calls = []
    optimizer = AdamWithOwnStep([parameter_with_gradient()])
    optimizer.register_step_post_hook(lambda *_: calls.append(1))

    optimizer.step()

    assert calls == [1]


def test_hooks_run_once_if_step_is_patched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Adam.step

    @functools.wraps(original)
    def patched_step(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(Adam, "step", patched_step)
    calls = []
    optimizer = Adam([parameter_with_gradient()])
    optimizer.register_step_post_hook(lambda *_: calls.append(1))

    optimizer.step()

    assert calls == [1]


def test_the_profiler_sees_a_step_under_torchs_name() -> None:
    optimizer = Adam([parameter_with_gradient()])

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
        optimizer.zero_grad()

    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad"} <= names
