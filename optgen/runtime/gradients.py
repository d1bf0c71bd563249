"""What a gradient, a parameter or a state looks like to a lowering."""

from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.private import local_tensor, plain
from optgen.runtime.rule import FACTS, Rule, truth
from optgen.runtime.sharded.placed import Placed, placed
from optgen.runtime.sharded.views import locals_of

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


_dtype = attrgetter("dtype")


class Trait(NamedTuple):
    """What decides which lowerings can take a tensor; different traits never share a call."""

    device: str = "cpu"
    rows: bool = False  # the gradient is sparse: it touches some rows of the parameter
    sparse: bool = False  # the parameter itself is
    subclass: str = ""  # the name of a tensor class that is more than memory
    again: int = 0  # how often the parameter stands in the group before: it is stepped each time
    facts: tuple[bool, ...] = ()  # whether those that the rule asks for hold of the parameter
    placed: Placed | None = None  # where parts of the parameter lie, if the rule needs all of them


@cache
def _plain_on(device: str) -> Trait:
    return Trait(device)


def traits(
    rule: Rule,
    members: list[Tensor],
    params: list[Tensor],
    grads: list[Tensor],
    ordinary: bool,
) -> list[Trait]:
    """Find the trait of every parameter and its gradient.

    With `ordinary` gradients are dense memory and no more, and no parameter stands there twice.
    """
    found = (
        [_plain_on(param.device.type) for param in params]
        if ordinary and all_plain(params)
        else _traits(members, params, grads)
    )
    if not rule.elementwise and not all_plain(members):
        pairs = zip(found, map(placed, members), strict=True)
        found = [trait._replace(placed=where) for trait, where in pairs]
    if not rule.facts:
        return found
    answers = zip(*(map(FACTS[fact], members) for fact in rule.facts), strict=True)
    answered = list(zip(found, answers, strict=True))
    made = {(trait, facts): trait._replace(facts=facts) for trait, facts in set(answered)}
    return list(map(made.__getitem__, answered))


def _traits(members: list[Tensor], params: list[Tensor], grads: list[Tensor]) -> list[Trait]:
    seen: dict[int, int] = {}
    found = []
    for member, param, grad in zip(members, params, grads, strict=True):
        again = seen[id(member)] = seen.get(id(member), -1) + 1
        subclass = next((type(t).__name__ for t in (param, grad) if not plain(type(t))), "")
        sparse = param.layout is not torch.strided
        rows = grad.layout is not torch.strided and not sparse
        found.append(Trait(param.device.type, rows, sparse, subclass, again))
    return found


def check(optimizer: "GeneratedOptimizer", group: Mapping[str, Any], grad: Tensor) -> None:
    """Raise an error, torch's where it has one, if the rule cannot take this gradient."""
    rule = optimizer.rule
    if grad.layout not in (torch.strided, torch.sparse_coo):
        name = _rule_owner(optimizer)
        raise RuntimeError(f"{name} does not support gradients of the layout {grad.layout}")
    if grad.is_sparse:
        if rule.gradient == "dense":
            message = f"{_rule_owner(optimizer)} does not support sparse gradients"
            raise RuntimeError(message + rule.sparse_hint)
        for key in rule.dense_only:
            if truth(group[key]):
                raise RuntimeError(f"{key} option is not compatible with sparse gradients")
        if not rule.elementwise and not grad.dense_dim():
            message = f"{_rule_owner(optimizer)} looks at rows, not at single elements: "
            raise RuntimeError(message + "a sparse gradient must name whole rows")
    elif rule.gradient == "sparse_only":
        message = f"{_rule_owner(optimizer)} does not support dense gradients"
        raise RuntimeError(message + rule.sparse_hint)


def check_parameters(optimizer: "GeneratedOptimizer") -> None:
    """Raise torch's errors for parameters that a rule for sparse gradients only cannot take."""
    if optimizer.rule.gradient != "sparse_only":
        return
    places = {
        (index, place): param
        for index, group in enumerate(optimizer.param_groups)
        for place, param in enumerate(group["params"])
    }
    sparse = [list(at) for at, param in places.items() if param.is_sparse]
    name = _rule_owner(optimizer)
    if sparse:
        raise ValueError(
            f"Sparse params at indices {sparse}: {name} requires dense parameter tensors"
        )
    complexes = [list(at) for at, param in places.items() if param.is_complex()]
    if complexes:
        raise ValueError(
            f"Complex params at indices {complexes}: {name} does not support complex parameters"
        )


def check_whole(optimizer: "GeneratedOptimizer", members: list[Tensor]) -> None:
    """Raise an error for tensors that only an elementwise rule can take."""
    if optimizer.rule.elementwise:
        return
    name = _rule_owner(optimizer)
    for member in members:
        if member.is_complex():
            raise RuntimeError(f"{name} does not support complex parameters")
        where = placed(member)
        if where is not None and not where.is_even(member):
            raise RuntimeError(
                f"{name} looks at a parameter as a whole, and this process holds a part of the "
                f"shape {tuple(local_tensor(member).shape)} of a parameter {tuple(member.shape)} "
                f"that lies as {where.placements}: not as torch cuts it; use distribute_tensor"
            )


def _rule_owner(optimizer: "GeneratedOptimizer") -> str:
    """The class whose rule this is: AdamW inherits Adam's, and torch's errors then say Adam."""
    for kind in type(optimizer).__mro__:
        if "lowerings" in vars(kind):
            return kind.__name__
    return type(optimizer).__name__


def reals(tensors: list[Tensor], written: bool = False) -> list[Tensor]:
    """The tensors as a lowering sees them; a new list.

    Of a conjugate view it sees a copy, which is no place to write to: then torch's error is raised.
    """
    held = locals_of(tensors)
    if not any(dtype.is_complex for dtype in set(map(_dtype, held))):
        return held
    return [_real(tensor, written) for tensor in held]


def _real(tensor: Tensor, written: bool) -> Tensor:
    """Complex numbers as pairs of reals."""
    if tensor.is_complex() and not tensor.is_sparse:
        return torch.view_as_real(tensor if written else tensor.resolve_conj())
    return tensor


def all_plain(tensors: Sequence[Tensor]) -> bool:
    """Tell whether all these tensors are memory and no more."""
    return all(map(plain, set(map(type, tensors))))
