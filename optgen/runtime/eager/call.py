"""Call the generated for-loop or foreach function that updates a batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.sparse_rows import check_rows, gather_rows
from optgen.runtime.eager import common_dtype
from optgen.runtime.eager.buckets import buckets
from optgen.runtime.eager.functional_checks import check_functional
from optgen.runtime.eager.generated_functions import Function, load, variant_name
from optgen.runtime.eager.hyper_arguments import hyper_arguments
from optgen.runtime.eager.tensor_lists import chunks
from optgen.runtime.protocols import Lowered
from optgen.runtime.rule import Rule

Split: TypeAlias = Callable[[Rule, list[list[Any]]], Iterable[list[list[Any]]]]


class Call(NamedTuple):
    """Batch with the generated function that updates it."""

    batch: Batch
    function: Function
    hypers: dict[str, Any]
    functional: bool
    takes_sparse: bool  # gradients are dense, or the function can add sparse gradients
    split: Split  # divides the lists of a bucket among several calls

    @classmethod
    def of(cls, optimizer: Lowered, batch: Batch, lowering: str) -> "Call":
        """Check a batch, and find its function."""
        rule, group = optimizer.rule, batch.group
        functional = bool(group.get("differentiable") or group.get("capturable"))
        taken = hyper_arguments(rule, group, functional, lowering)
        if functional:
            check_functional(rule, batch)
            taken["capturable"] = bool(group.get("capturable"))
        if batch.dispatch_key.sparse_grad:
            check_rows(batch)
        # The functional form is written for one tensor; tensor lists compute like one.
        form = ("forloop", "update_functional") if functional else (lowering, "update")
        function = load(optimizer.lowerings, form[0], variant_name(form[1], rule, batch))
        takes_sparse = not batch.dispatch_key.sparse_grad or (
            rule.adds and not functional and not any(map(torch.is_complex, batch.grads))
        )
        split = _split(rule, batch, functional, lowering)
        return cls(batch, function, taken, functional, takes_sparse, split)

    def update(self, rule: Rule) -> None:
        """Update the batch, bucket by bucket; with sparse gradients, only the rows they touch."""
        rows = None if self.takes_sparse else gather_rows(rule, self.batch)
        dense = rows.rows if rows else self.batch
        for columns, fresh, _ in buckets(rule, dense, equal_scalars=not self.functional):
            for part in self.split(rule, columns):
                self.function(*part, **self.hypers, **fresh)
        if rows:
            rows.scatter_rows()


def _split(rule: Rule, batch: Batch, functional: bool, lowering: str) -> Split:
    """Return the function that divides the lists of a bucket among several calls."""
    split = _in_chunks if functional and lowering == "foreach" and rule.elementwise else _whole
    if not common_dtype.several(rule, batch):
        return split

    def in_one_dtype(rule: Rule, columns: list[list[Any]]) -> Iterator[list[list[Any]]]:
        for lists in common_dtype.chunks_in_one_dtype(rule, columns):
            yield from split(rule, lists)

    return in_one_dtype


def _in_chunks(rule: Rule, columns: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return chunks(columns)


def _whole(rule: Rule, columns: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return (columns,)
