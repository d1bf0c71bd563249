"""Call the generated for-loop or foreach function that updates a batch.

The functional form of a rule writes no intermediate result in place, so that autograd and graph
capture can follow it. It serves steps that are differentiable or capturable.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.sparse_rows import check_rows, gather_rows
from optgen.runtime.eager import common_dtype
from optgen.runtime.eager.buckets import buckets
from optgen.runtime.eager.differentiable_capturable_checks import check_functional
from optgen.runtime.eager.generated_functions import Function, load, variant_name
from optgen.runtime.eager.hyper_arguments import hyper_arguments
from optgen.runtime.eager.tensor_lists import chunks
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.rule import Rule

Split: TypeAlias = Callable[[Rule, list[list[Any]]], Iterable[list[list[Any]]]]


class Call(NamedTuple):
    """A batch, the generated function that updates it, and arguments for the function."""

    batch: Batch
    function: Function
    hypers: dict[str, Any]
    functional: bool  # whether `function` is the functional form
    takes_grads: bool  # whether the function takes the gradients as they are, dense or sparse
    split: Split  # divides the lists of a bucket among several calls

    @classmethod
    def of(cls, optimizer: HasLowerings, batch: Batch, lowering: str) -> "Call":
        """Check a batch, and find its function."""
        rule, group = optimizer.rule, batch.group
        functional = bool(group.get("differentiable") or group.get("capturable"))
        hypers = hyper_arguments(rule, group, functional, lowering)
        if functional:
            check_functional(rule, batch)
            hypers["capturable"] = bool(group.get("capturable"))
        if batch.dispatch_key.sparse_grad:
            check_rows(batch)
        # The functional form is written for one tensor; a TensorList computes like one.
        module, name = ("forloop", "update_functional") if functional else (lowering, "update")
        function = load(optimizer.lowerings, module, variant_name(name, rule, batch))
        takes_grads = not batch.dispatch_key.sparse_grad or (
            rule.scatter_adds and not functional and not any(map(torch.is_complex, batch.grads))
        )
        split = _split(rule, batch, functional, lowering)
        return cls(batch, function, hypers, functional, takes_grads, split)

    def update(self, rule: Rule) -> None:
        """Update the batch, bucket by bucket; or only rows, if it cannot take sparse gradients."""
        touched = None if self.takes_grads else gather_rows(rule, self.batch)
        batch = touched.row_batch if touched else self.batch
        for lists, fresh, _ in buckets(rule, batch, equal_scalars=not self.functional):
            for part in self.split(rule, lists):
                self.function(*part, **self.hypers, **fresh)
        if touched:
            touched.scatter_rows()


def _split(rule: Rule, batch: Batch, functional: bool, lowering: str) -> Split:
    """Return the function that divides the lists of a bucket among several calls."""
    split = _in_chunks if functional and lowering == "foreach" and rule.elementwise else _undivided
    if not common_dtype.has_several_dtypes(rule, batch):
        return split

    def split_in_one_dtype(rule: Rule, lists: list[list[Any]]) -> Iterator[list[list[Any]]]:
        for chunk in common_dtype.chunks_in_one_dtype(rule, lists):
            yield from split(rule, chunk)

    return split_in_one_dtype


def _in_chunks(rule: Rule, lists: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return chunks(lists)


def _undivided(rule: Rule, lists: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return (lists,)
