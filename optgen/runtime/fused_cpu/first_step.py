"""Take a first step as a repeated one: states are made, and the C++ reader looks at the tensors.

To gather 2,000 parameters, Python looks at each of them and of their states some ten times, which
takes longer than making the states. Here the reader looks at parameters and gradients, and of those
that it finds alike Python sees one.
"""

from collections.abc import Callable
from itertools import chain, compress

from optgen.runtime.batch import flat_partitions
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import Stepping
from optgen.runtime.fused_cpu.cached_dense_step import CachedDenseStep
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.reader import tensor_reader
from optgen.runtime.protocols import Group
from optgen.runtime.state.create import create_missing


def batches(optimizer: Stepping, takes: Callable[[Batch], bool]) -> list[Batch]:
    """Return the groups' batches, without states, if all of them go to the kernel; else nothing.

    The `members` of a batch are all parameters with a gradient; its `params` and `grads` are one
    pair of each kind of tensor. Wrong tensors are left to the checks of a gathered step.
    """
    rule, groups = optimizer.rule, optimizer.param_groups
    if rule.gradient == "sparse_only" or rule.step == "int" or optimizer._context.placeholders:
        return []
    if getattr(optimizer, "found_inf", None) is not None:
        return []
    lists = [group["params"] for group in groups]
    if not all(type(params) is list for params in lists):
        return []
    reader = tensor_reader.built()  # one that is not is built while the kernel is
    seen = reader.look(lists) if reader else []
    made = [_batch(optimizer, *each) for each in zip(groups, seen, strict=False) if any(each[1])]
    return made if _are_all_taken(optimizer, made, takes) else []


def _are_all_taken(optimizer: Stepping, made: list[Batch], takes: Callable[[Batch], bool]) -> bool:
    context = optimizer._context
    context.batches = {id(batch.group): batch for batch in made}  # one library is built for all
    try:
        return all(map(takes, made))
    finally:
        context.batches = {}


def _batch(optimizer: Stepping, group: Group, types: list[int]) -> Batch:
    flat_partitions.check(optimizer, group, optimizer._context.original_params.get(id(group)))
    params = group["params"]
    kinds = [params[types.index(kind)] for kind in sorted({*types} - {0})]
    members = list(compress(params, types))
    return Batch(group, members, kinds, [each.grad for each in kinds], [], [], [], {}, [], [])


def taken(kernel: Kernel, optimizer: Stepping, batches: list[Batch]) -> CachedDenseStep | None:
    """Take the step; return what repeats it, or None if the reader cannot."""
    repeat = CachedDenseStep.of(kernel, optimizer, {id(batch.group) for batch in batches})
    if repeat is None:
        return None
    rule, state, defaults = optimizer.rule, optimizer.state, optimizer.defaults
    made = (create_missing(rule, state, batch.group, batch.members, defaults) for batch in batches)
    created = list(chain.from_iterable(made))
    if repeat.begin(optimizer, created):
        return repeat
    for values, key in created:  # it is still to be seen that they are fresh
        values.pop(key, None)  # a parameter that comes twice has had it created twice
    return None
