"""Test that rules on whole matrices take fused sweeps between torch's matrix words on a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cuda_host.emulated_runtime import host_waits, launches, recorded
from cuda_host.twins import Twins

import optgen
import optgen.optim

_SHAPES = ((12, 9), (8, 8), (12, 9))
CLASSES = ("SOAP", "Shampoo", "Kron", "GaLore", "Dion", "APOLLO", "Scion", "PolarMuon")


@pytest.mark.parametrize("name", CLASSES)
def test_steps_are_those_of_the_cpu(name: str) -> None:
    twins = Twins(getattr(optgen.optim, name), _SHAPES)
    twins.train(2)
    twins.give_gradients(2)
    with recorded() as records:
        twins.step()

    twins.check()
    assert str(optgen.explain(twins.optimizer)) == (
        "group 0: fused Triton: CUDA tensors, float64; "
        f"torch computes the matrices, and {twins.optimizer.rule.fused_share:.0%} of the other "
        "memory traffic is that of fused sweeps"
    )
    assert launches(records)


@pytest.mark.parametrize("name", sorted({*CLASSES}))
def test_the_host_waits_for_nothing(name: str) -> None:
    twins = Twins(getattr(optgen.optim, name), _SHAPES)
    twins.train(2)
    twins.give_gradients(2)
    with recorded() as records:
        twins.optimizer.step()

    assert host_waits(records) == []


def test_the_steps_of_a_fused_group_are_counted_on_the_host() -> None:
    twins = Twins(optgen.optim.SOAP, _SHAPES, fused=True)
    twins.train(3)

    twins.check()
    assert all(state["step"].is_cpu for state in twins.optimizer.state.values())


def test_two_devices_and_another_stream() -> None:
    twins = Twins(optgen.optim.Shampoo, _SHAPES, devices=("cuda:0", "cuda:1"))
    twins.train(2)
    torch.cuda.synchronize(0)
    with torch.cuda.stream(torch.cuda.Stream(0)):
        twins.train(2, first=2)

    twins.check()


@pytest.mark.parametrize("options", [{"fused": True}, {}])
def test_a_capture_is_refused_with_a_reason(options: dict[str, Any]) -> None:
    """With `capturable` alone, the step is torch's, whose decompositions no graph can capture."""
    twins = Twins(optgen.optim.SOAP, _SHAPES, capturable=True, **options)
    twins.give_gradients(0)
    if options:
        with pytest.raises(RuntimeError, match="capturable=True, and the step reads its numbers"):
            twins.optimizer.step()
    else:
        assert str(optgen.explain(twins.optimizer)) == "group 0: foreach: capturable"
