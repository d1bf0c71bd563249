"""Take a first step of ordinary tensors without gathering them in Python.

Python creates the states. Then the first step is taken as a cached one: the C++ reader reads all
tensors, and calls the kernel. If Python gathered the tensors, it would read each parameter and each
state some ten times. With 2,000 parameters, this takes longer than creating the states. Here Python
reads only one parameter and its gradient for each pair of their dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, compress

from optgen.runtime.batch.batch import Batch, has_pieces
from optgen.runtime.batch.check_params import (
    check_not_flat,
    check_params,
    check_views,
    note_narrow_params,
)
from optgen.runtime.batch.step_context import OptimizerWithContext
from optgen.runtime.fused_cpu.cached_step import CachedDenseStep
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.reader import tensor_reader
from optgen.runtime.rule import Group
from optgen.runtime.state.create import create_missing


def first_batches(optimizer: OptimizerWithContext) -> list[Batch]:
    """Return the groups' batches, without states; [] if they must be gathered.

    The `members` of a batch are all parameters with a gradient. Its `params` and `grads` hold one
    parameter and gradient per pair of dtypes. If a tensor is invalid, the list is empty, and
    `gather_batches` raises the error later.
    """
    rule, groups = optimizer.rule, optimizer.param_groups
    if rule.quantized_states or has_pieces(optimizer):  # the reader cannot read them
        return []
    if rule.gradient == "sparse_only" or rule.step == "int" or optimizer._context.placeholders:
        return []
    if getattr(optimizer, "found_inf", None) is not None:
        return []
    try:
        check_views(optimizer)
        note_narrow_params(rule, groups)
        for group in groups:
            check_params(optimizer, group, group["params"])
    except ValueError:
        return []
    lists = [group["params"] for group in groups]
    if not all(type(params) is list for params in lists):
        return []
    reader = tensor_reader.built_reader()  # a missing reader is built along with the kernel
    dtype_codes = reader.read_dtypes(lists) if reader else []
    pairs = zip(groups, dtype_codes, strict=False)  # no codes if the reader is missing or gave up
    return [_first_batch(optimizer, group, codes) for group, codes in pairs if any(codes)]


def build_for_all(
    optimizer: OptimizerWithContext, batches: Sequence[Batch], choose: Callable[[Batch], str]
) -> bool:
    """Choose the lowerings of all batches, and build their kernel; tell whether C++ takes all.

    `choose` chooses the lowering of a batch, and builds its kernel.
    """
    context = optimizer._context
    # `load_kernel` reads these batches, so that one library is built for all of them.
    context.batches = {id(batch.group): batch for batch in batches}
    try:
        return all(choose(batch) == "fused_cpu" for batch in batches)
    finally:
        context.batches = {}


def _first_batch(optimizer: OptimizerWithContext, group: Group, dtype_codes: list[int]) -> Batch:
    """Return the batch of a group, without states.

    `dtype_codes` has an entry for each parameter of the group; 0 stands for no gradient.
    """
    check_not_flat(optimizer, group, optimizer._context.original_params)
    params = group["params"]
    examples = [params[dtype_codes.index(code)] for code in sorted({*dtype_codes} - {0})]
    members = list(compress(params, dtype_codes))
    grads = [each.grad for each in examples]
    return Batch(group=group, members=members, params=examples, grads=grads)


def take_first_step(
    kernel: Kernel, optimizer: OptimizerWithContext, batches: list[Batch]
) -> CachedDenseStep | None:
    """Take a first step; return the cached step, or None if the step must gather its tensors."""
    try:
        cached = CachedDenseStep.of(kernel, optimizer, {id(batch.group) for batch in batches})
    except (TypeError, ValueError):
        return None  # a hyperparameter is invalid, and the gathered step raises the error
    if cached is None:
        return None
    rule, state, defaults = optimizer.rule, optimizer.state, optimizer.defaults
    created_by_batch = (
        create_missing(
            rule, state, batch.group, batch.members, defaults, groups=optimizer.param_groups
        )
        for batch in batches
    )
    created = list(chain.from_iterable(created_by_batch))
    if cached.begin(optimizer, created):
        return cached
    # The gathered step that follows treats states as fresh only if it finds them missing.
    for values, key in created:
        values.pop(key, None)  # if a parameter is listed twice, its states are in `created` twice
    return None
