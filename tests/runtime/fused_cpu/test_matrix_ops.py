"""Test fused C++ steps of rules with matrix ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from parity.trajectories import random_values, relative_error
from runtime.fused_cpu.test_phases import Shape, grads_of, take_steps
from torch import Tensor
from torch.nn import Parameter

from optgen.optim import Muon
from optgen.runtime import matrix_ops


def test_a_sweep_may_store_only_a_state_in_sixteen_bits() -> None:
    """The sweep that stores Muon's momentum stores no parameter."""
    param = Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))
    param.grad = torch.ones_like(param)
    optimizer = Muon([param], momentum=0.5)
    optimizer.step()
    assert torch.equal(optimizer.state[param]["momentum_buffer"], torch.full_like(param, 0.5))


def test_a_matrix_op_takes_all_matrices_of_a_group_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes_of_calls: list[list[Shape]] = []

    def record_shapes(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
        shapes_of_calls.append([tuple(tensor.shape) for tensor in tensors])
        return original(tensors, *arguments)

    original = matrix_ops.orthogonalize
    monkeypatch.setattr(matrix_ops, "orthogonalize", record_shapes)
    shapes = [(4, 6), (6, 4), (4, 6)]
    params = [Parameter(value) for value in random_values(shapes, torch.float64, 0)]
    references = [param.detach().clone() for param in params]
    take_steps(Muon([{"params": params[:2]}, {"params": params[2:]}]))
    reference_optimizer = torch.optim.Muon(references)
    for step in range(4):
        for reference, grad in zip(references, grads_of(references, step), strict=True):
            reference.grad = grad
        reference_optimizer.step()

    assert shapes_of_calls[:2] == [[(4, 6), (6, 4)], [(4, 6)]]
    assert all(relative_error(p, q) < 1e-12 for p, q in zip(params, references, strict=True))


def test_a_column_major_matrix_takes_the_step_of_a_row_major_one() -> None:
    (start,) = random_values([(6, 9)], torch.float64, 0)
    row_major, column_major = Parameter(start.clone()), Parameter(start.t().contiguous().t())
    assert not column_major.is_contiguous()
    for param in (row_major, column_major):
        take_steps(Muon([param]))
    assert relative_error(column_major, row_major) < 1e-14
