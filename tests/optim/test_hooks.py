"""Test an optimizer's six kinds of hooks, the two global kinds, and that copies have no hooks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.classes import closure, give_gradients, ours_and_torchs, parameters, train
from parity.classes import CLOSURE_CLASSES, NAMES
from torch.optim import optimizer as torchs

HOOKS = (
    *("step_pre", "step_post", "state_dict_pre", "state_dict_post"),
    *("load_state_dict_pre", "load_state_dict_post"),
)


def register_recording_hooks(optimizer: Any, calls: list[Any]) -> list[Any]:
    """Register two hooks of each kind, and return handles to remove them.

    The second hook runs before the first one if the kind has the argument `prepend`.
    """
    handles = []
    for hook in HOOKS:
        register = getattr(optimizer, f"register_{hook}_hook")

        def first(*args: Any, called: str = hook) -> None:
            calls.append((called, "first", [type(arg) for arg in args[1:]]))

        def second(*args: Any, called: str = hook) -> None:
            calls.append((called, "second", [type(arg) for arg in args[1:]]))

        handles.append(register(first))
        handles.append(register(second, **({"prepend": True} if "dict" in hook else {})))
    for when in ("pre", "post"):
        register = getattr(torchs, f"register_optimizer_step_{when}_hook")
        handles.append(register(lambda *args, called=when: calls.append((called, "global"))))
    return handles


@pytest.mark.parametrize("name", NAMES)
def test_all_hooks_run_as_torchs(name: str) -> None:
    calls_of_classes = []
    for cls in ours_and_torchs(name):
        params, calls = parameters(name), []  # type: Any, list[Any]
        optimizer = cls(params)
        handles = register_recording_hooks(optimizer, calls)
        try:
            train(name, optimizer, params, 2)
            optimizer.load_state_dict(optimizer.state_dict())
        finally:
            for handle in handles:
                handle.remove()
        train(name, optimizer, params, 1)
        optimizer.load_state_dict(optimizer.state_dict())
        calls_of_classes.append(calls)

    ours, theirs = calls_of_classes
    assert ours == theirs
    calls_of_two_steps, calls_of_checkpoint = 2 * 6, 8
    assert len(ours) == calls_of_two_steps + calls_of_checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_hooks_can_replace_a_checkpoint(name: str) -> None:
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    train(name, optimizer, params, 2)
    optimizer.register_state_dict_post_hook(lambda self, found: {"wrapped": found})
    optimizer.register_load_state_dict_pre_hook(lambda self, state: state["wrapped"])

    checkpoint = optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.load_state_dict(checkpoint)

    assert list(checkpoint) == ["wrapped"]
    saved_lr = checkpoint["wrapped"]["param_groups"][0]["lr"]
    assert optimizer.param_groups[0]["lr"] == saved_lr != 7.0


@pytest.mark.parametrize("name", NAMES)
def test_a_pre_hook_can_replace_the_closure(name: str) -> None:
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    give_gradients(name, params)
    evaluate = closure(name, params) or (lambda: torch.tensor(3.0))
    optimizer.register_step_pre_hook(lambda self, args, kwargs: ((self, evaluate), {}))

    assert optimizer.step(lambda: 1 / 0) > 0


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_has_no_hooks_and_continues_as_the_original(
    name: str, make_copy: Callable[[Any], Any]
) -> None:
    """Torch does not copy hooks either, because they refer to objects of the original."""
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    optimizer.register_step_post_hook(lambda *args: calls.append("step"))
    optimizer.register_state_dict_post_hook(lambda *args: calls.append("state"))
    calls: list[str] = []
    train(name, optimizer, params, 0 if name in CLOSURE_CLASSES else 3)  # LBFGS would converge

    clone = make_copy(optimizer)
    clone_params = clone.param_groups[0]["params"]
    calls.clear()
    train(name, clone, clone_params, 2, start=3)
    clone.state_dict()
    assert not calls
    assert not all(map(torch.equal, clone_params, params))  # nothing is shared
    train(name, optimizer, params, 2, start=3)
    assert all(map(torch.equal, clone_params, params))
    train(name, clone, clone_params, 1)
    clone.register_step_post_hook(lambda *args: calls.append("new"))
    train(name, clone, clone_params, 1)
    assert calls[-1] == "new"


@pytest.mark.parametrize("name", NAMES)
def test_the_profilers_names_are_torchs(name: str) -> None:
    event_names = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        give_gradients(name, params)
        evaluate = closure(name, params)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.step(*([evaluate] if evaluate else []))
            optimizer.zero_grad()
        events = profile.key_averages()
        event_names.append({e.key for e in events if e.key.startswith("Optimizer.")})

    expected = {f"Optimizer.step#{name}.step", f"Optimizer.zero_grad#{name}.zero_grad"}
    assert event_names == [expected, expected]
