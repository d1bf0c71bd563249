"""Test that a batch is used again in the next step exactly if it is still valid."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime.batch.batches import give_gradients, only_batch, optimizer_after_a_step
from torch import Tensor

from optgen import explain
from optgen.optim import SGD, Adafactor, Adam, RMSprop
from optgen.runtime.batch.gather import States, gather_batches, make_batch
from optgen.runtime.batch.gradients import Gradients


def test_new_gradients_and_hyperparameters_keep_a_batch() -> None:
    optimizer, params = optimizer_after_a_step()
    before = only_batch(optimizer)

    give_gradients(params)
    optimizer.param_groups[0]["lr"] = 0.5
    after = only_batch(optimizer)

    assert after is before
    assert all(a is p.grad for a, p in zip(after.grads, params, strict=True))


def remove_a_gradient(optimizer: Adam, params: list[Tensor]) -> None:
    params[1].grad = None


def replace_a_parameter(optimizer: Adam, params: list[Tensor]) -> None:
    optimizer.param_groups[0]["params"][1] = other = torch.nn.Parameter(torch.ones(3, 2))
    other.grad = torch.ones(3, 2)


def replace_a_state(optimizer: Adam, params: list[Tensor]) -> None:
    optimizer.state[params[1]]["exp_avg"] = torch.ones(3, 2)


def replace_a_step(optimizer: Adam, params: list[Tensor]) -> None:
    optimizer.state[params[1]]["step"] = torch.tensor(1.0)


def replace_an_entry(optimizer: Adam, params: list[Tensor]) -> None:
    optimizer.state[params[1]] = dict(optimizer.state[params[1]])


def delete_a_state(optimizer: Adam, params: list[Tensor]) -> None:
    del optimizer.state[params[1]]["exp_avg_sq"]


def clear_the_states(optimizer: Adam, params: list[Tensor]) -> None:
    optimizer.state.clear()


def reload_the_states(optimizer: Adam, params: list[Tensor]) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def set_amsgrad(optimizer: Adam, params: list[Tensor]) -> None:
    optimizer.param_groups[0]["amsgrad"] = True


@pytest.mark.parametrize(
    "change",
    [
        remove_a_gradient,
        replace_a_parameter,
        replace_a_state,
        replace_a_step,
        replace_an_entry,
        delete_a_state,
        clear_the_states,
        reload_the_states,
        set_amsgrad,
    ],
)
def test_a_batch_has_the_new_tensors_after_a_change(
    change: Callable[[Adam, list[Tensor]], None],
) -> None:
    optimizer, params = optimizer_after_a_step()
    only_batch(optimizer)

    change(optimizer, params)
    after = only_batch(optimizer)

    members = [p for p in optimizer.param_groups[0]["params"] if p.grad is not None]
    assert [id(p) for p in after.params] == [id(p) for p in members]
    keys = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    for key, column in zip(keys, after.states, strict=True):
        if column:
            entries = [optimizer.state[param][key] for param in members]
            assert all(a is b for a, b in zip(column, entries, strict=True))
    assert bool(after.states[2]) == optimizer.param_groups[0]["amsgrad"]
    step_counts = [optimizer.state[param]["step"] for param in members]
    assert all(a is b for a, b in zip(after.step_counts, step_counts, strict=True))


def test_a_change_of_dtype_makes_a_new_batch() -> None:
    """Lowerings cache facts about a batch that hold only for its dtypes."""
    optimizer, params = optimizer_after_a_step()
    before = only_batch(optimizer)

    optimizer.state[params[1]]["exp_avg"] = torch.ones(3, 2, dtype=torch.float64)
    after = only_batch(optimizer)
    params[0].grad = None
    params[0].data = params[0].data.bfloat16()
    params[0].grad = torch.ones(3, 2, dtype=torch.bfloat16)

    assert len({id(batch) for batch in (before, after, only_batch(optimizer))}) == 3


def test_states_are_checked_again_if_a_parameter_changes_shape() -> None:
    param = torch.nn.Parameter(torch.ones(4, 64))
    optimizer = Adafactor([param])
    give_gradients([param])
    optimizer.step()
    param.grad = None
    param.data = torch.ones(2, 128)  # the same number of elements, in fewer and longer rows
    give_gradients([param])

    with pytest.raises(
        RuntimeError, match=r"row_var has the shape \(4, 1\), but its parameter \(2, 128\)"
    ):
        gather_batches(optimizer)


@pytest.mark.parametrize("shape", [(6, 2), (3, 1)])
def test_a_gradient_left_from_a_parameter_of_another_size_is_refused(
    shape: tuple[int, int],
) -> None:
    param = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = SGD([param])
    give_gradients([param])
    optimizer.step()
    param.data = torch.ones(shape)

    with pytest.raises(RuntimeError, match=r"a gradient has the shape \(3, 2\), but its parameter"):
        gather_batches(optimizer)


@pytest.mark.parametrize("key", ["step", "exp_avg"])
def test_states_on_another_device_take_the_for_loop(key: str) -> None:
    param = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = Adam([param])
    give_gradients([param])
    optimizer.step()
    optimizer.state[param][key] = optimizer.state[param][key].to("meta")

    assert "for-loop: states or gradients are on another device" in explain(optimizer)


def test_a_state_that_is_none_is_created_again() -> None:
    optimizer, params = optimizer_after_a_step()
    optimizer.state[params[0]]["exp_avg"] = None

    only_batch(optimizer)

    assert optimizer.state[params[0]]["exp_avg"].tolist() == torch.zeros(3, 2).tolist()
    assert float(optimizer.state[params[0]]["step"]) == 1


def test_batches_with_different_states_have_different_types() -> None:
    """The states of the two batches have equal dtypes, but different names."""
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = RMSprop([param], momentum=0.5, centered=True)
    optimizer.step()
    group = optimizer.param_groups[0]

    def types(**flags: Any) -> list[list[Any]]:
        grads, states = Gradients([param.grad], ordinary=True), States(optimizer.state)
        return make_batch(optimizer, {**group, **flags}, [param], grads, states).signature

    assert types(momentum=0) != types(centered=False)
    assert types(momentum=0) == types(momentum=0)


def test_a_parameter_listed_twice_after_a_step_is_stepped_twice() -> None:
    """Dtypes stay the same and there is no state: only a parameter's identity shows the change."""
    params: list[Tensor] = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = SGD(params, lr=1.0)
    give_gradients(params)
    optimizer.step()
    optimizer.param_groups[0]["params"][1] = params[0]
    optimizer.step()

    assert params[0].tolist() == [-2.0] * 3
    assert params[1].tolist() == [0.0] * 3


def test_reversed_groups_find_their_states() -> None:
    params: list[Tensor] = [torch.nn.Parameter(torch.ones(n)) for n in (1, 2, 3, 4)]
    optimizer = Adam([{"params": params[:2]}, {"params": params[2:]}])
    give_gradients(params)
    optimizer.step()
    optimizer.param_groups.reverse()

    for batch in gather_batches(optimizer):
        expected = [optimizer.state[param] for param in batch.members]
        assert all(a is b for a, b in zip(batch.dicts, expected, strict=True))
