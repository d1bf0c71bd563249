"""Test the tensors of a group with a view: views if the strides allow it, and copies otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from optgen import use_lowering
from optgen.optim import Adafactor, AdamW, Muon
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.gather import gather_batches


def only_batch(cls: type, params: list[Tensor], view: tuple[int, ...]) -> Batch:
    optimizer = cls([{"params": params, "view": view}])
    for param in params:
        param.grad = torch.ones_like(param)
    (batch,) = gather_batches(optimizer)
    return batch


def test_contiguous_tensors_are_not_copied() -> None:
    params = [Parameter(torch.ones(4, 3, 2, 2)), Parameter(torch.ones(4, 6))]
    batch = only_batch(Muon, params, (4, -1))

    assert not batch.view_copies
    grads = [param.grad for param in params]
    for originals, views in ((grads, batch.grads), (params, batch.params)):
        assert [view.shape for view in views] == [(4, 12), (4, 6)]
        assert [v.data_ptr() for v in views] == [t.data_ptr() for t in originals]
    (momentum,) = batch.states
    assert [t.shape for t in momentum] == [(4, 12), (4, 6)]
    assert [values["momentum_buffer"].shape for values in batch.dicts] == [(4, 3, 2, 2), (4, 6)]
    assert [t.shape for t in batch.seen_params] == [(4, 12), (4, 6)]
    assert batch.members == params


def test_only_a_tensor_whose_strides_forbid_the_view_is_copied() -> None:
    channels_last = Parameter(torch.ones(4, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    batch = only_batch(Muon, [Parameter(torch.ones(4, 6)), channels_last], (4, -1))

    assert {each.param_index for each in batch.view_copies} == {1}
    assert [each.is_gradient for each in batch.view_copies] == [False, True, False]
    assert any(each.original is channels_last for each in batch.view_copies)


def test_transposed_tensors_may_have_a_view() -> None:
    """The view splits only the axis before the transposed ones, so it needs no copy."""
    batch = only_batch(Adafactor, [Parameter(torch.ones(12, 2, 3).mT)], (3, 4, 3, 2))

    assert not batch.view_copies


def test_an_elementwise_rule_sees_the_parameters_themselves() -> None:
    param = Parameter(torch.ones(4, 6))
    batch = only_batch(AdamW, [param], (2, -1))

    assert batch.params == [param]
    assert batch.needs_no_views
    assert not batch.meta_views


@pytest.mark.parametrize("lowering", ["forloop", "fused_cpu"])
def test_no_tensor_outlives_the_step(lowering: str) -> None:
    params = [
        Parameter(torch.ones(4, 6)),
        Parameter(torch.ones(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
    ]
    optimizer = Adafactor([{"params": params, "view": (4, -1)}])
    for param in params:
        param.grad = torch.ones_like(param)
    with use_lowering(lowering):
        optimizer.step()

    for batch in optimizer._context.batches.values():
        assert [batch.params, batch.meta_views, batch.view_copies, batch.states] == [[], [], [], []]
