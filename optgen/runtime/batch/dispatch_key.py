"""The dispatch key of a parameter: the properties that decide which lowerings can take it."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from optgen.contract.states import FACTS
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.dtensor import all_plain
from optgen.runtime.tensors.sharding import Sharding, sharding_of
from optgen.runtime.torch_private import is_plain_class

OPTIONS = ("foreach", "fused", "capturable", "differentiable")
"""The group options that decide the lowering, besides the tensors and the dtype of lr."""


class DispatchKey(NamedTuple):
    """The properties that decide which lowerings can take a tensor.

    The tensors of one call have equal keys.
    """

    device: str = "cpu"
    sparse_grad: bool = False  # the gradient is sparse: it names some rows of the parameter
    sparse_param: bool = False
    subclass: str = ""  # the name of a tensor class that overrides operations
    occurrence: int = 0  # how often the group lists the same parameter before this entry
    facts: tuple[bool, ...] = ()  # the values of the rule's shape predicates
    sharding: Sharding | None = None  # only where the rule needs whole parameters
    input_flags: tuple[tuple[str, bool], ...] = ()  # (flag, its value) for each optional input


@cache
def _plain_key(device: str) -> DispatchKey:
    return DispatchKey(device)


def dispatch_keys(
    rule: Rule,
    members: list[Tensor],
    params: list[Tensor],
    grads: list[Tensor],
    ordinary: bool,
    seen_params: list[Tensor] | None = None,
) -> list[DispatchKey]:
    """Return the dispatch key of every parameter and its gradient.

    `members` are the group's parameters, and `params` their real, local views. If the group has a
    view, `seen_params` are the members in the shapes that the rule sees. If `ordinary`, the
    gradients are dense and of plain classes, and the parameters are distinct.
    """
    keys = (
        [_plain_key(param.device.type) for param in params]
        if ordinary and all_plain(params)
        else _keys_one_by_one(members, params, grads)
    )
    if not rule.elementwise and not all_plain(members):
        pairs = zip(keys, map(sharding_of, members), strict=True)
        keys = [key._replace(sharding=sharding) for key, sharding in pairs]
    if not rule.facts:
        return keys
    shapes = [param.shape for param in seen_params or members]
    facts_by_param = zip(*(map(FACTS[fact], shapes) for fact in rule.facts), strict=True)
    pairs_by_param = list(zip(keys, facts_by_param, strict=True))
    # Make each key once: thousands of parameters have few different pairs.
    keys_by_pair = {(key, facts): key._replace(facts=facts) for key, facts in set(pairs_by_param)}
    return [keys_by_pair[pair] for pair in pairs_by_param]


def _keys_one_by_one(
    members: list[Tensor], params: list[Tensor], grads: list[Tensor]
) -> list[DispatchKey]:
    """Return the dispatch keys of tensors that may be sparse, of a subclass, or listed twice."""
    occurrences: dict[int, int] = {}
    keys = []
    for member, param, grad in zip(members, params, grads, strict=True):
        occurrence = occurrences[id(member)] = occurrences.get(id(member), -1) + 1
        subclass = next(
            (type(t).__name__ for t in (param, grad) if not is_plain_class(type(t))), ""
        )
        sparse_param = param.layout is not torch.strided
        sparse_grad = grad.layout is not torch.strided and not sparse_param
        device = param.device.type
        keys.append(DispatchKey(device, sparse_grad, sparse_param, subclass, occurrence))
    return keys


def dtype_or_class(value: object) -> object:
    """Return the dtype of a tensor hyperparameter, or the class of a number.

    The dtype of a tensor learning rate can decide the lowering: torch computes in that dtype.
    """
    return getattr(value, "dtype", value.__class__)
