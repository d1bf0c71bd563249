"""Take a first step as a repeated one: states are made, and the C++ reader looks at the tensors.

To gather 2,000 parameters, Python looks at each of them and of their states some ten times, which
takes longer than making the states. Here the reader looks at parameters and gradients, and of those
that it finds alike Python sees one.
"""

from itertools import chain, compress
from typing import TYPE_CHECKING, Any

from optgen.runtime import partitions
from optgen.runtime.choice import choose
from optgen.runtime.fused_cpu import tensor_reader
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.repeat import Repeat
from optgen.runtime.state import ensure
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


def works(optimizer: "GeneratedOptimizer") -> list[Work]:
    """The groups' work, without states, if the kernel is to take it all; else nothing.

    All parameters with a gradient are its `members`; `params` and `grads` are one pair of each
    kind. What is wrong with a tensor is left to those that look more closely.
    """
    rule, groups = optimizer.rule, optimizer.param_groups
    if rule.gradient == "sparse_only" or rule.step == "int" or optimizer._survey.ahead:
        return []
    if getattr(optimizer, "found_inf", None) is not None:
        return []
    lists = [group["params"] for group in groups]
    if not all(type(params) is list for params in lists):
        return []
    reader = tensor_reader.built()  # one that is not is built while the kernel is
    seen = reader.look(lists) if reader else []
    works = [_work(optimizer, *each) for each in zip(groups, seen, strict=False) if any(each[1])]
    return works if _are_for_the_kernel(optimizer, works) else []


def _are_for_the_kernel(optimizer: "GeneratedOptimizer", works: list[Work]) -> bool:
    kept = optimizer._survey
    kept.works = {id(work.group): work for work in works}  # one library is built for all of them
    try:
        return all(choose(optimizer, work)[0] == "fused_cpu" for work in works)
    finally:
        kept.works = {}


def _work(optimizer: "GeneratedOptimizer", group: dict[str, Any], types: list[int]) -> Work:
    partitions.check(optimizer, group)
    params = group["params"]
    kinds = [params[types.index(kind)] for kind in sorted({*types} - {0})]
    members = list(compress(params, types))
    return Work(group, members, kinds, [each.grad for each in kinds], [], [], [], {}, [], [])


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
