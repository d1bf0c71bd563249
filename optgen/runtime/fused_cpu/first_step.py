"""Take a first step as a repeated one: states are made, and the C++ reader looks at the tensors.

To gather 2,000 parameters, Python looks at each of them and of their states some ten times, which
takes longer than making the states. Here it asks only what must be known before states are made.
"""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.runtime import partitions
from optgen.runtime.choice import choose
from optgen.runtime.collect import with_gradient
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.repeat import Repeat
from optgen.runtime.fused_cpu.table import CODES
from optgen.runtime.gradients import all_plain, check_sizes
from optgen.runtime.state import ensure
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer

_layout, _dtype, _is_cpu = attrgetter("layout"), attrgetter("dtype"), attrgetter("is_cpu")
_DENSE = {torch.strided}


def works(optimizer: "GeneratedOptimizer") -> list[Work]:
    """The groups' tensors, without states, if the kernel is to take them all; else nothing.

    What is wrong with a tensor is an error here, or left to those that look more closely.
    """
    rule, groups = optimizer.rule, optimizer.param_groups
    if rule.gradient == "sparse_only" or rule.step == "int" or optimizer._survey.ahead:
        return []
    if getattr(optimizer, "found_inf", None) is not None:
        return []
    if not all(_ordinary(group["params"]) for group in groups):  # else processes meet before errors
        return []
    seen = [(group, *with_gradient(group)) for group in groups]
    if not all(_ordinary(grads) for _, _, grads in seen):
        return []
    works = [_work(optimizer, *each) for each in seen if each[1]]
    return works if _are_for_the_kernel(optimizer, works) else []


def _are_for_the_kernel(optimizer: "GeneratedOptimizer", works: list[Work]) -> bool:
    kept = optimizer._survey
    kept.works = {id(work.group): work for work in works}  # one library is built for all of them
    try:
        return all(choose(optimizer, work)[0] == "fused_cpu" for work in works)
    finally:
        kept.works = {}


def _work(
    optimizer: "GeneratedOptimizer",
    group: dict[str, Any],
    members: list[Tensor],
    grads: list[Tensor],
) -> Work:
    check_sizes(members, grads)
    partitions.check(optimizer, group)
    return Work(group, members, members, grads, [], [], [], {}, [], [])


def _ordinary(tensors: Sequence[Tensor]) -> bool:
    """Tell whether all are dense memory and no more, in types that kernels know."""
    if not (all_plain(tensors) and all(map(_is_cpu, tensors))):
        return False
    return set(map(_dtype, tensors)) <= CODES.keys() and set(map(_layout, tensors)) <= _DENSE


def taken(kernel: Kernel, optimizer: "GeneratedOptimizer", works: list[Work]) -> Repeat | None:
    """Take the step; return what repeats it, or None if the reader cannot."""
    repeat = Repeat.of(kernel, optimizer, {id(work.group) for work in works})
    if repeat is None:
        return None
    rule, state, defaults = optimizer.rule, optimizer.state, optimizer.defaults
    made = (ensure(rule, state, work.group, work.members, defaults) for work in works)
    created = list(chain.from_iterable(made))
    if repeat.begin(optimizer, created):
        return repeat
    for values, key in created:  # it is still to be seen that they are fresh
        values.pop(key, None)  # a parameter that comes twice has had it created twice
    return None
