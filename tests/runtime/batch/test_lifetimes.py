"""Test that an optimizer keeps no tensor alive after a step."""

import weakref
from collections.abc import Iterator

import pytest
import torch
from runtime.batch.batches import give_gradients
from torch import Tensor

from optgen import use_lowering
from optgen.optim import SGD


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("steps", [1, 3])
class TestNothingIsKeptAlive:
    """After a step, an optimizer holds only its groups and its state, as torch's does."""

    @pytest.fixture
    def optimizer_and_params(self, lowering: str, steps: int) -> Iterator[tuple[SGD, list[Tensor]]]:
        params: list[Tensor] = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(3)]
        optimizer = SGD(params, momentum=0.9)
        with use_lowering(lowering):
            for _ in range(steps):
                give_gradients(params)
                optimizer.step()
            yield optimizer, params

    def test_gradients_are_freed(self, optimizer_and_params: tuple[SGD, list[Tensor]]) -> None:
        optimizer, params = optimizer_and_params
        gradient = weakref.ref(params[0].grad)

        optimizer.zero_grad()

        assert gradient() is None

    def test_replaced_states_are_freed(
        self, optimizer_and_params: tuple[SGD, list[Tensor]]
    ) -> None:
        optimizer, params = optimizer_and_params
        entry = optimizer.state[params[0]]
        state = weakref.ref(entry["momentum_buffer"])

        entry["momentum_buffer"] = entry["momentum_buffer"].clone()

        assert state() is None

    def test_cleared_states_are_freed(self, optimizer_and_params: tuple[SGD, list[Tensor]]) -> None:
        optimizer, params = optimizer_and_params
        state = weakref.ref(optimizer.state[params[0]]["momentum_buffer"])

        optimizer.state.clear()

        assert state() is None

    def test_removed_parameters_are_freed(
        self, optimizer_and_params: tuple[SGD, list[Tensor]]
    ) -> None:
        optimizer, params = optimizer_and_params
        param = weakref.ref(params[0])

        params.clear()
        optimizer.state.clear()
        optimizer.param_groups.clear()

        assert param() is None
