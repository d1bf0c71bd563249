"""Take a first step as a repeated one: states are made, and the C++ reader looks at the tensors.

To gather 2,000 parameters, Python looks at each of them and of their states some ten times, which
takes longer than making the states. Here it asks only what must be known before states are made.
"""

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.runtime import partitions
from optgen.runtime.collect import with_gradient
from optgen.runtime.dispatch import choose
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
    odd = optimizer.rule.gradient == "sparse_only" or optimizer.rule.step == "int"
    if odd or optimizer._survey.ahead or getattr(optimizer, "found_inf", None) is not None:
        return []
    found = [_work(optimizer, group) for group in optimizer.param_groups]
    works = [work for work in found if work and work.params]
    return works if all(found) and _are_for_the_kernel(optimizer, works) else []


def _are_for_the_kernel(optimizer: "GeneratedOptimizer", works: list[Work]) -> bool:
    kept = optimizer._survey
    kept.works = {id(work.group): work for work in works}  # one library is built for all of them
    try:
        return all(choose(optimizer, work)[0] == "fused_cpu" for work in works)
    finally:
        kept.works = {}


def _work(optimizer: "GeneratedOptimizer", group: dict[str, Any]) -> Work | None:
    members, grads = with_gradient(group)
    if not (_ordinary(members) and _ordinary(grads)):
        return None
    check_sizes(members, grads)
    partitions.check(optimizer, group)
    return Work(group, members, members, grads, [], [], [], {}, [], [])


def _ordinary(tensors: list[Tensor]) -> bool:
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
        del values[key]
    return None
