"""Test tables whose rows are updated in the backward pass: bits equal those of a later step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optgen.optim
from optgen import explain
from optgen.keyed import FusedEmbedding, FusedEmbeddingBag, RowWiseAdagrad

ROWS, WIDTH = 40, 7
OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (RowWiseAdagrad, {"lr": 0.1}),
    (optgen.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    (optgen.optim.SparseAdam, {"lr": 0.1}),
    (optgen.optim.SGD, {"lr": 0.1}),
]
IDS = [cls.__name__ for cls, _ in OPTIMIZERS]


def lookups(step: int) -> list[Tensor]:
    """Return two lookups: rows may occur in both, and several times in one."""
    generator = torch.Generator().manual_seed(step)
    return [torch.randint(ROWS, (3, 4), generator=generator) for _ in range(2)]


def backward(table: nn.Module, step: int) -> None:
    results = [table(indices) for indices in lookups(step)]
    sum(each.square().sum() for each in results).backward()  # type: ignore[union-attr]


@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS, ids=IDS)
def test_the_bits_are_those_of_a_step_after_the_backward_pass(
    cls: Any, options: dict[str, Any], bag: bool
) -> None:
    fused, plain = (FusedEmbeddingBag, nn.EmbeddingBag) if bag else (FusedEmbedding, nn.Embedding)
    torch.manual_seed(0)
    ours = fused(ROWS, WIDTH, optimizer_class=cls, optimizer_kwargs=options)
    theirs = plain(ROWS, WIDTH, sparse=True)
    theirs.load_state_dict(ours.state_dict())
    reference = cls(theirs.parameters(), **options)
    for step in range(4):
        backward(ours, step)
        assert ours.weight.grad is None
        ours.fused_optimizer.step()
        reference.zero_grad()
        backward(theirs, step)
        reference.step()

    assert torch.equal(ours.weight, theirs.weight)
    states, expected = ours.fused_optimizer.state[ours.weight], reference.state[theirs.weight]
    assert list(states) == list(expected)
    assert all(
        torch.equal(torch.as_tensor(v), torch.as_tensor(expected[k])) for k, v in states.items()
    )


def test_the_gradient_is_sparse_and_is_freed_in_the_backward_pass() -> None:
    table = nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
    records = []
    fused = FusedEmbeddingBag(ROWS, WIDTH, _weight=table.weight.detach(), mode="sum")
    *_, hook = fused.weight._post_accumulate_grad_hooks.values()  # type: ignore[union-attr]

    def record(param: Tensor) -> None:
        assert param.grad is not None
        records.append((param.grad.layout, param.grad._nnz()))
        hook(param)
        assert param.grad is None

    fused.weight._post_accumulate_grad_hooks.clear()  # type: ignore[union-attr]
    fused.weight.register_post_accumulate_grad_hook(record)
    before = fused.weight.detach().clone()
    backward(fused, 0)

    used_rows = torch.cat(lookups(0)).unique()
    ((layout, values),) = records
    assert layout is torch.sparse_coo
    assert len(used_rows) <= values <= 24  # two lookups of 12 indices
    is_changed = (fused.weight != before).any(1)
    assert set(torch.arange(ROWS)[is_changed].tolist()) == set(used_rows.tolist())


def test_fused_cpu_steps_the_rows_of_a_table() -> None:
    table = FusedEmbedding(ROWS, WIDTH, optimizer_class=optgen.optim.Adagrad)
    (bucket,) = table.fused_optimizer._buckets  # type: ignore[attr-defined]
    table.weight.grad = torch.ones(ROWS, WIDTH).to_sparse(1)
    text = explain(bucket.optimizer)
    assert "fused C++" in text
    assert "sparse gradients by the rows they touch" in text


def test_copies_and_loaded_tables_train_as_the_original() -> None:
    """A table's state_dict has its weight only; its optimizer has a state_dict by name."""
    table = FusedEmbedding(ROWS, WIDTH, padding_idx=0, optimizer_kwargs={"lr": 0.2})
    backward(table, 0)
    other = copy.deepcopy(table)
    assert list(table.state_dict()) == ["weight"]
    fresh = FusedEmbedding(ROWS, WIDTH, padding_idx=0, optimizer_kwargs={"lr": 0.2})
    fresh.load_state_dict(table.state_dict())
    fresh.fused_optimizer.init_state()
    fresh.fused_optimizer.load_state_dict(table.fused_optimizer.state_dict())
    for each in (table, other, fresh):
        each.fused_optimizer.step()
        backward(each, 1)
    assert torch.equal(table.weight, other.weight)
    assert torch.equal(table.weight, fresh.weight)
    assert other.fused_optimizer.state[other.weight]["step"] == 2


def test_classes_and_modes_without_sparse_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="AdamW takes no sparse gradients; RowWiseAdagrad, "):
        FusedEmbedding(3, 2, optimizer_class=optgen.optim.AdamW)
    with pytest.raises(ValueError, match='mode "max" has no sparse gradient'):
        FusedEmbeddingBag(3, 2, mode="max")
