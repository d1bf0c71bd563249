"""Test fused C++ steps of rules with matrix ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from parity.trajectories import error, values
from runtime.fused_cpu.test_phases import Shape, grads_of, stepped
from torch import Tensor
from torch.nn import Parameter

from optgen.optim import Muon
from optgen.runtime import matrix_ops


def test_a_sweep_may_store_only_a_state_in_sixteen_bits() -> None:
    """The sweep that stores Muon's momentum stores no parameter."""
    narrow = Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))
    narrow.grad = torch.ones_like(narrow)
    optimizer = Muon([narrow], momentum=0.5)
    optimizer.step()
    assert torch.equal(optimizer.state[narrow]["momentum_buffer"], torch.full_like(narrow, 0.5))


def test_a_matrix_op_takes_all_matrices_of_a_group_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes_of_calls: list[list[Shape]] = []

    def recorded(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
        shapes_of_calls.append([tuple(tensor.shape) for tensor in tensors])
        return original(tensors, *arguments)

    original = matrix_ops.orthogonalize
    monkeypatch.setattr(matrix_ops, "orthogonalize", recorded)
    shapes = [(4, 6), (6, 4), (4, 6)]
    groups = [{"params": [Parameter(v)]} for v in values(shapes, torch.float64, 0)]
    optimizer = Muon([{"params": [groups[0]["params"][0], groups[1]["params"][0]]}, groups[2]])
    references = [p.detach().clone() for g in optimizer.param_groups for p in g["params"]]
    theirs = torch.optim.Muon(references)
    params = stepped(optimizer)
    for step in range(4):
        for reference, grad in zip(references, grads_of(references, step), strict=True):
            reference.grad = grad
        theirs.step()

    assert shapes_of_calls[:2] == [[(4, 6), (6, 4)], [(4, 6)]]
    assert all(error(p, q) < 1e-12 for p, q in zip(params, references, strict=True))


def test_a_matrix_stored_by_columns_takes_the_same_step() -> None:
    (start,) = values([(6, 9)], torch.float64, 0)
    plain, by_columns = Parameter(start.clone()), Parameter(start.t().contiguous().t())
    assert not by_columns.is_contiguous()
    for param in (plain, by_columns):
        stepped(Muon([param]))
    assert error(by_columns, plain) < 1e-14
