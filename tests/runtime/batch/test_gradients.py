"""Test unusual parameters and gradients: sparse, complex, listed twice, subclasses, odd strides."""

from collections.abc import Callable

import pytest
import torch
from runtime.batch.batches import give_gradients, only_batch, optimizer_after_a_step
from runtime.training import error, parameters, steps_with_gradients, train
from torch import Tensor

from optgen import use_lowering
from optgen.optim import Adam


def test_a_sparse_gradient_raises_torchs_error_at_any_step() -> None:
    for after_a_step in (False, True):
        optimizer, params = optimizer_after_a_step()
        if not after_a_step:
            optimizer = Adam(params, foreach=False)
        reference = torch.optim.Adam(params, foreach=False)
        params[1].grad = torch.ones(3, 2).to_sparse()

        messages = []
        for each in (optimizer, reference):
            with pytest.raises(RuntimeError) as caught:
                each.step()
            messages.append(str(caught.value))

        assert messages[0] == messages[1]


def test_complex_parameters_are_seen_as_pairs_of_reals() -> None:
    params = parameters(torch.complex64)
    optimizer = Adam(params, foreach=False)
    train(optimizer, params, 2)
    for _ in steps_with_gradients(params, 1):
        batch = only_batch(optimizer)

    assert not any(
        tensor.is_complex() for tensor in (*batch.params, *batch.grads, *batch.states[0])
    )
    assert all(optimizer.state[param]["exp_avg"].is_complex() for param in batch.members)


def test_tensors_that_need_different_lowerings_split_a_batch() -> None:
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    twice = [params[0], params[1], params[0], params[2]]
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = Adam(twice, foreach=False)
    give_gradients(list(params))

    batch = only_batch(optimizer)

    assert [part.indices for part in batch.parts] == [[0, 1, 3], [2]]
    assert [part.dispatch_key.occurrence for part in batch.parts] == [0, 1]
    give_gradients(list(params))
    assert only_batch(optimizer) is batch
    assert all(a is p.grad for a, p in zip(batch.parts[0].grads, params, strict=True))


def test_a_parameter_that_is_listed_twice_is_stepped_twice() -> None:
    ours, theirs = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    for cls, param in ((Adam, ours), (torch.optim.Adam, theirs)):
        with pytest.warns(UserWarning, match="duplicate parameters"):
            optimizer = cls([param, param], foreach=False)
        for factor in (1.0, -3.0):
            param.grad = torch.full((2,), factor, dtype=torch.float64)
            optimizer.step()

    assert error([ours], [theirs]) < 1e-12


def test_a_tensor_subclass_gets_a_part_of_its_own() -> None:
    class Special(torch.Tensor):
        """A subclass that overrides operations, so its meaning is unknown."""

    plain = torch.nn.Parameter(torch.ones(2))
    special = torch.ones(2).as_subclass(Special).requires_grad_()
    plain.grad, special.grad = torch.ones(2), torch.ones(2)
    optimizer = Adam([plain, special])

    batch = only_batch(optimizer)

    assert [part.dispatch_key.subclass for part in batch.parts] == ["", "Special"]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded"])
def test_gradients_of_any_memory_layout_give_torchs_step(layout: str) -> None:
    layouts: dict[str, Callable[[Tensor], Tensor]] = {
        "contiguous": lambda t: t,
        "transposed": lambda t: t.T.contiguous().T,
        "expanded": lambda t: t[:1].expand(3, 4),
    }
    torch.manual_seed(0)
    values, steps = torch.randn(3, 4), [torch.randn(3, 4) for _ in range(3)]
    results = []
    for cls in (Adam, torch.optim.Adam):
        param = torch.nn.Parameter(values.T.contiguous().T)
        optimizer = cls([param], foreach=False)
        with use_lowering("foreach"):
            for grad in steps:
                param.grad = layouts[layout](grad)
                optimizer.step()
        results.append((param, optimizer.state[param]["exp_avg"].stride()))

    assert error([results[0][0]], [results[1][0]]) < 1e-6
    assert results[0][1] == results[1][1]
