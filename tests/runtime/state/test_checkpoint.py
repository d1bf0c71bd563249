"""Test that generated classes and torch's load one another's checkpoints during training."""

import io
from typing import Any

import pytest
import torch
from runtime.training import error, parameters, train

from optgen.optim import Adam

pytestmark = pytest.mark.usefixtures("each_lowering")


def saved_and_loaded(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint after a round trip through `torch.save` and `torch.load`."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("default_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"fused": True}, {"lr": torch.tensor(0.1)}]
)
def test_a_checkpoint_equals_torchs(options: dict[str, Any], default_dtype: torch.dtype) -> None:
    ours, theirs = parameters(), parameters()
    torch.set_default_dtype(default_dtype)
    try:
        optimizer, reference = Adam(ours, **options), torch.optim.Adam(theirs, **options)
        train(optimizer, ours, 3)
        train(reference, theirs, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    found, expected = optimizer.state_dict(), reference.state_dict()

    assert list(found) == list(expected)
    assert found["param_groups"] == expected["param_groups"]
    assert [list(g) for g in found["param_groups"]] == [list(g) for g in expected["param_groups"]]
    assert list(found["state"]) == list(expected["state"])
    for index, entry in expected["state"].items():
        assert list(found["state"][index]) == list(entry)
        for key, value in entry.items():
            found_value = found["state"][index][key]
            assert (found_value.dtype, found_value.shape, found_value.stride()) == (
                value.dtype,
                value.shape,
                value.stride(),
            )


@pytest.mark.parametrize(
    "classes", [(torch.optim.Adam, Adam), (Adam, torch.optim.Adam), (Adam, Adam)]
)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_training_goes_on_after_a_load(classes: tuple[Any, Any], amsgrad: bool) -> None:
    first, second = classes
    params, resumed_params = parameters(), parameters()
    optimizer = first(params, lr=0.1, amsgrad=amsgrad)
    train(optimizer, params, 4)
    checkpoint = saved_and_loaded(optimizer.state_dict())

    with torch.no_grad():
        for param, value in zip(resumed_params, params, strict=True):
            param.copy_(value)
    resumed = second(resumed_params)
    train(resumed, parameters(), 1)  # creates state that the load replaces
    resumed.load_state_dict(checkpoint)
    train(optimizer, params, 4, seed=9)
    train(resumed, resumed_params, 4, seed=9)

    assert error(resumed_params, params) < 1e-12
    assert resumed.param_groups[0]["lr"] == 0.1


def test_the_state_of_an_optimizer_that_took_no_step_can_be_saved_and_loaded() -> None:
    optimizer = Adam(parameters())

    optimizer.load_state_dict(saved_and_loaded(optimizer.state_dict()))

    assert optimizer.state_dict()["state"] == {}


def test_keys_missing_in_a_checkpoint_get_torchs_value_or_keep_the_groups() -> None:
    params = parameters()
    optimizer = Adam(params, maximize=True, eps=1e-3)
    optimizer.param_groups[0]["eps"] = 1e-4
    checkpoint = optimizer.state_dict()
    for key in ("maximize", "fused", "eps"):
        del checkpoint["param_groups"][0][key]

    optimizer.load_state_dict(checkpoint)

    group = optimizer.param_groups[0]
    assert group["maximize"] is False  # as in torch: a checkpoint without the key means False
    assert group["fused"] is None
    assert group["eps"] == 1e-4  # the group's own value


def test_step_counts_of_old_checkpoints_become_tensors() -> None:
    params = parameters()
    optimizer = Adam(params)
    train(optimizer, params, 2)
    checkpoint = optimizer.state_dict()
    for entry in checkpoint["state"].values():
        entry["step"] = int(entry["step"])

    optimizer.load_state_dict(checkpoint)

    steps = [entry["step"] for entry in optimizer.state.values()]
    assert all(isinstance(s, torch.Tensor) and s.dtype == torch.float32 for s in steps)
    train(optimizer, params, 1)


def test_hooks_get_checkpoints_that_are_saved_and_loaded() -> None:
    params = parameters()
    optimizer = Adam(params)
    train(optimizer, params, 1)
    calls: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("pre"))
    optimizer.register_state_dict_post_hook(lambda o, packed: {**packed, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, packed: {k: v for k, v in packed.items() if k != "extra"}
    )
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))

    checkpoint = optimizer.state_dict()
    optimizer.load_state_dict(checkpoint)

    assert checkpoint["extra"] == 1
    assert calls == ["pre", "loaded"]
    assert len(optimizer._optimizer_state_dict_post_hooks) == 1


@pytest.mark.parametrize("change", ["groups", "params"])
def test_a_checkpoint_of_another_model_raises_torchs_error(change: str) -> None:
    messages = []
    for cls in (Adam, torch.optim.Adam):
        optimizer = cls(parameters())
        checkpoint = optimizer.state_dict()
        if change == "groups":
            checkpoint["param_groups"].append(checkpoint["param_groups"][0])
        else:
            checkpoint["param_groups"][0]["params"].append(99)
        with pytest.raises(ValueError) as caught:
            optimizer.load_state_dict(checkpoint)
        messages.append(str(caught.value))

    assert messages[0] == messages[1]
