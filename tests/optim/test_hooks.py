"""Test an optimizer's six hooks, the two hooks of all optimizers, and that copies have none."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.classes import closure, give_gradients, ours_and_torchs, parameters, train
from parity.classes import CLOSURE, NAMES
from torch.optim import optimizer as torchs

HOOKS = ("step_pre", "step_post", "state_dict_pre", "state_dict_post")
LOADING = ("load_state_dict_pre", "load_state_dict_post")


def record(optimizer: Any, calls: list[Any]) -> list[Any]:
    """Register two hooks of each kind, the second before the first where `prepend` exists."""
    handles = []
    for hook in (*HOOKS, *LOADING):
        register = getattr(optimizer, f"register_{hook}_hook")

        def first(*args: Any, called: str = hook) -> None:
            calls.append((called, "first", [type(arg) for arg in args[1:]]))

        def second(*args: Any, called: str = hook) -> None:
            calls.append((called, "second", [type(arg) for arg in args[1:]]))

        handles.append(register(first))
        handles.append(register(second, **({"prepend": True} if "dict" in hook else {})))
    for when in ("pre", "post"):
        register = getattr(torchs, f"register_optimizer_step_{when}_hook")
        handles.append(register(lambda *args, called=when: calls.append((called, "every"))))
    return handles


@pytest.mark.parametrize("name", NAMES)
def test_all_hooks_run_as_torchs(name: str) -> None:
    called = []
    for cls in ours_and_torchs(name):
        params, calls = parameters(name), []  # type: Any, list[Any]
        optimizer = cls(params)
        handles = record(optimizer, calls)
        try:
            train(name, optimizer, params, 2)
            optimizer.load_state_dict(optimizer.state_dict())
        finally:
            for handle in handles:
                handle.remove()
        train(name, optimizer, params, 1)
        optimizer.load_state_dict(optimizer.state_dict())
        called.append(calls)

    assert called[0] == called[1]
    assert len(called[0]) == 2 * 6 + 8


@pytest.mark.parametrize("name", NAMES)
def test_hooks_may_replace_a_checkpoint(name: str) -> None:
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    train(name, optimizer, params, 2)
    optimizer.register_state_dict_post_hook(lambda self, found: {"wrapped": found})
    optimizer.register_load_state_dict_pre_hook(lambda self, state: state["wrapped"])

    packed = optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.load_state_dict(packed)

    assert list(packed) == ["wrapped"]
    assert optimizer.param_groups[0]["lr"] == packed["wrapped"]["param_groups"][0]["lr"] != 7.0


@pytest.mark.parametrize("name", NAMES)
def test_a_pre_hook_may_replace_the_closure(name: str) -> None:
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    give_gradients(name, params)
    evaluate = closure(name, params) or (lambda: torch.tensor(3.0))
    optimizer.register_step_pre_hook(lambda self, args, kwargs: ((self, evaluate), {}))

    assert optimizer.step(lambda: 1 / 0) > 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_has_no_hooks_and_continues_as_the_original(
    name: str, copied: Callable[[Any], Any]
) -> None:
    """As in torch, hooks are not copied, because they refer to objects of the original."""
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    optimizer.register_step_post_hook(lambda *args: calls.append("step"))
    optimizer.register_state_dict_post_hook(lambda *args: calls.append("state"))
    calls: list[str] = []
    train(name, optimizer, params, 0 if name in CLOSURE else 3)  # LBFGS would soon have converged

    clone = copied(optimizer)
    copies = clone.param_groups[0]["params"]
    calls.clear()
    train(name, clone, copies, 2, start=3)
    clone.state_dict()
    assert not calls
    assert not all(map(torch.equal, copies, params))  # nothing is shared
    train(name, optimizer, params, 2, start=3)
    assert all(map(torch.equal, copies, params))
    train(name, clone, copies, 1)
    clone.register_step_post_hook(lambda *args: calls.append("new"))
    train(name, clone, copies, 1)
    assert calls[-1] == "new"


@pytest.mark.parametrize("name", NAMES)
def test_the_profilers_names_are_torchs(name: str) -> None:
    seen = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        give_gradients(name, params)
        evaluate = closure(name, params)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.step(*([evaluate] if evaluate else []))
            optimizer.zero_grad()
        seen.append({e.key for e in profile.key_averages() if e.key.startswith("Optimizer.")})

    assert (
        seen[0]
        == seen[1]
        == {
            f"Optimizer.step#{name}.step",
            f"Optimizer.zero_grad#{name}.zero_grad",
        }
    )
