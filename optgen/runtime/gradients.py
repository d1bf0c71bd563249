"""What a gradient, a parameter or a state looks like to a lowering."""

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from optgen.runtime.private import is_complex, plain

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


_device = attrgetter("device")
_layout = attrgetter("layout")


class Trait(NamedTuple):
    """What decides which lowerings can take a tensor; different traits never share a call."""

    device: str = "cpu"
    sparse: bool = False
    subclass: str = ""  # the name of a tensor class that is more than memory
    again: int = 0  # how often the parameter stands in the group before: it is stepped each time


@cache
def _plain_on(device: str) -> Trait:
    return Trait(device)


def traits(members: list[Tensor], params: list[Tensor], grads: list[Tensor]) -> list[Trait]:
    """Find the trait of every parameter and its gradient."""
    dense = set(map(_layout, grads)) <= {torch.strided} and all_plain([*params, *grads])
    if dense and len(set(map(id, members))) == len(members):  # as good as always
        types = {device.type for device in set(map(_device, params))}
        if len(types) == 1:
            return [_plain_on(types.pop())] * len(params)
        return [_plain_on(param.device.type) for param in params]
    seen: dict[int, int] = {}
    found = []
    for member, param, grad in zip(members, params, grads, strict=True):
        again = seen[id(member)] = seen.get(id(member), -1) + 1
        subclass = next((type(t).__name__ for t in (param, grad) if not plain(type(t))), "")
        sparse = grad.layout is not torch.strided
        found.append(Trait(param.device.type, sparse, subclass, again))
    return found


def check(optimizer: "GeneratedOptimizer", grad: Tensor, fused: bool) -> None:
    """Raise torch's error if the rule, or the lowering asked for, cannot take this gradient."""
    rule = optimizer.rule
    if grad.is_sparse:
        if rule.gradient == "dense":
            message = f"{_rule_owner(optimizer)} does not support sparse gradients"
            raise RuntimeError(message + rule.sparse_hint)
        if fused:
            raise RuntimeError(f"`_fused_{rule.name}` does not support sparse gradients")
    elif rule.gradient == "sparse_only":
        message = f"{_rule_owner(optimizer)} does not support dense gradients"
        raise RuntimeError(message + rule.sparse_hint)


def _rule_owner(optimizer: "GeneratedOptimizer") -> str:
    """The class whose rule this is: AdamW inherits Adam's, and torch's errors then say Adam."""
    for kind in type(optimizer).__mro__:
        if "lowerings" in vars(kind):
            return kind.__name__
    return type(optimizer).__name__


def reals(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors as a lowering sees them; a new list."""
    if all_plain(tensors) and not any(map(is_complex, tensors)):
        return list(tensors)
    return [_real(tensor) for tensor in tensors]


def _real(tensor: Tensor) -> Tensor:
    """The tensor's shard in this process; complex numbers as pairs of reals."""
    if not plain(type(tensor)) and hasattr(tensor, "to_local"):
        tensor = cast(Tensor, tensor.to_local())
    if tensor.is_complex() and not tensor.is_sparse:
        return torch.view_as_real(tensor.resolve_conj())
    return tensor


def all_plain(tensors: list[Tensor]) -> bool:
    """Tell whether all these tensors are memory and no more."""
    return all(map(plain, set(map(type, tensors))))
