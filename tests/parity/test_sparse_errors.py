"""Test that sparse gradients, and SparseAdam with dense ones, raise torch's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity.cases import CASE_OF_CLASS, Case
from parity.classes import CLOSURE_CLASSES, INFOS, NAMES, SPARSE_CLASSES, torch_has_flag
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad
FLAGS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
SPARSE_ADAM = Case("SparseAdam")


def gradient_of_one_row() -> Tensor:
    values = torch.randn(1, 3, dtype=torch.float64)
    return torch.sparse_coo_tensor(torch.tensor([[1]]), values, (6, 3), check_invariants=True)


def takes_sparse_gradients(name: str) -> bool:
    return name in (*SPARSE_CLASSES, *CLOSURE_CLASSES) or bool(INFOS[name].supports_sparse)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if not takes_sparse_gradients(name)])
def test_a_refused_sparse_gradient_raises_torchs_error(name: str, flags: dict[str, Any]) -> None:
    """Torch's class gets only the flags that it has."""
    case = CASE_OF_CLASS[name]
    torchs_flags = {flag: value for flag, value in flags.items() if torch_has_flag(name, flag)}
    messages = []
    for make, options in ((case.ours, flags), (case.theirs, torchs_flags)):
        param = torch.nn.Parameter(torch.ones(6, 3, dtype=torch.float64))
        param.grad = gradient_of_one_row()
        with pytest.raises(RuntimeError) as caught:
            make([param], **options).step()
        messages.append(str(caught.value))
        assert torch.equal(param, torch.ones_like(param))

    assert messages[0] == messages[1]


def test_adagrad_with_weight_decay_raises_torchs_error() -> None:
    case, messages = Case("Adagrad", {"weight_decay": 0.1}), []
    for make in (case.ours, case.theirs):
        param = torch.nn.Parameter(torch.ones(6, 3))
        param.grad = gradient_of_one_row().float()
        with pytest.raises(RuntimeError) as caught:
            make([param]).step()
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


def test_sgd_with_weight_decay_refuses_a_sparse_gradient() -> None:
    param = torch.nn.Parameter(torch.ones(6, 3, dtype=torch.float64))
    optimizer = Case("SGD", {"weight_decay": 0.1, "momentum": 0.9}).ours([param])
    param.grad = gradient_of_one_row()

    with pytest.raises(RuntimeError, match="weight_decay option is not compatible with sparse"):
        optimizer.step()

    assert torch.equal(param, torch.ones_like(param))
    assert not optimizer.state[param]


def test_a_dense_gradient_in_sparse_adam_raises_torchs_error() -> None:
    messages = []
    for make in (SPARSE_ADAM.ours, torch.optim.SparseAdam):
        param = torch.nn.Parameter(torch.ones(6, 3))
        param.grad = torch.ones(6, 3)
        with pytest.raises(RuntimeError) as caught:
            make([param]).step()
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


REFUSED_PARAMETERS: list[Callable[[], Any]] = [
    lambda: [torch.zeros(3), torch.zeros(3).to_sparse()],
    lambda: [
        {"params": [torch.zeros(3)]},
        {"params": [torch.zeros(3), torch.zeros(3, dtype=torch.complex64)]},
    ],
    lambda: [torch.zeros(3, dtype=torch.complex64), torch.zeros(3).to_sparse()],
]


@pytest.mark.parametrize("params", REFUSED_PARAMETERS)
def test_sparse_adam_refuses_sparse_and_complex_parameters_with_torchs_error(
    params: Callable[[], Any],
) -> None:
    messages = []
    for make in (SPARSE_ADAM.ours, torch.optim.SparseAdam):
        with pytest.raises(ValueError, match="params at indices") as caught:
            make(params())
        messages.append(str(caught.value))

    assert messages[0] == messages[1]
