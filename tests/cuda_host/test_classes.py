"""Test that every class of torch's name steps right on a device, and that no later step waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cuda_host.emulated_runtime import Kind, host_waits, launches, recorded
from cuda_host.twins import SHAPES, Twins, draw
from torch import Tensor

import optgen
import optgen.optim
from benchmarks.classes import CLASSES, class_of

_MATRICES_ONLY = ((40, 30), (24, 24))


def _shapes(name: str) -> tuple[tuple[int, ...], ...]:
    return _MATRICES_ONLY if name == "Muon" else (*SHAPES, (6, 5, 3, 3))


@pytest.mark.parametrize("name", CLASSES)
def test_steps_are_those_of_the_cpu(name: str) -> None:
    twins = Twins(class_of(name), _shapes(name))
    twins.train(2)
    twins.set(lr=3e-3)
    twins.give_gradients(2)
    with recorded() as records:
        twins.step()

    twins.check()
    assert "fused Triton" in optgen.explain(twins.optimizer)
    assert launches(records)
    assert host_waits(records) == []
    assert [r.title for r in records if r.kind == Kind.OPERATION and name != "Muon"] == []


@pytest.mark.parametrize("name", ["Adam", "SGD", "Adafactor"])
@pytest.mark.parametrize("lowering", ["foreach", "forloop"])
def test_eager_steps_are_those_of_the_cpu(name: str, lowering: str) -> None:
    twins = Twins(class_of(name), _shapes(name))
    with optgen.use_lowering(lowering):
        twins.train(2)

    twins.check()


@pytest.mark.parametrize("options", [{"amsgrad": True, "maximize": True, "weight_decay": 0.1}])
def test_options_are_read_on_the_device(options: dict[str, Any]) -> None:
    twins = Twins(optgen.optim.Adam, amsgrad=True)
    twins.oracle.param_groups[0]["amsgrad"] = True
    twins.set(**options)
    twins.train(3)

    twins.check()


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    twins = Twins(optgen.optim.AdamW)
    for step in range(4):
        twins.give_gradients(step)
        if step in (1, 2):
            twins.params[step].grad = twins.host_params[step].grad = None
        twins.step()

    twins.check()


def test_strided_and_misaligned_parameters_are_stepped() -> None:
    def tensors() -> list[Tensor]:
        flat, matrix = draw((1100,), 0), draw((25, 44), 1)
        return [flat, matrix]

    def views(flat: Tensor, matrix: Tensor) -> list[Tensor]:
        parts = [flat[1:1041], matrix.t(), matrix[:, ::2].clone()[:, 1:]]
        return [part.detach().requires_grad_() for part in parts]

    params = views(*[each.cuda() for each in tensors()])
    host_params = views(*tensors())
    ours, oracle = optgen.optim.AdamW(params), optgen.optim.AdamW(host_params)
    for step in range(2):
        for index, (param, host_param) in enumerate(zip(params, host_params, strict=True)):
            host_param.grad = draw(tuple(param.shape), 10 * step + index)
            param.grad = host_param.grad.cuda()
        ours.step()
        with optgen.use_lowering("forloop"):
            oracle.step()

    for param, host_param in zip(params, host_params, strict=True):
        torch.testing.assert_close(param.cpu(), host_param, rtol=1e-12, atol=1e-12)


def test_sparse_gradients_are_stepped_by_foreach() -> None:
    finals = []
    for device in ("cuda", "cpu"):
        param = draw((50, 8), 0).to(device).requires_grad_()
        optimizer = optgen.optim.SparseAdam([param])
        for step in range(3):
            rows = torch.arange(step, 50, 3)[None].to(device)
            values = draw((rows.numel(), 8), step + 1).to(device)
            param.grad = torch.sparse_coo_tensor(rows, values, param.shape)
            with optgen.use_lowering("foreach"):
                optimizer.step()
        finals.append(param.detach().cpu())

    torch.testing.assert_close(*finals, rtol=1e-12, atol=1e-12)
