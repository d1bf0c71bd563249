"""The part of a shared tensor that this process holds, and gradients that lie as their parameters.

A DTensor is memory in every process, and a spec: the mesh of processes, and a placement for each
dimension of it. Lowerings see the memory. So a gradient must lie as its parameter does, which is
seen to before: where it does not, as when its summands have still to be added up, it is
redistributed. That is a collective, which every process enters, since specs are equal in all.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from optgen.runtime.private import local_tensor, plain, spec


def shared(kind: type[Any]) -> bool:
    """Tell whether tensors of this class are held by several processes together."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and issubclass(kind, module.DTensor)


def any_shared(tensors: Sequence[Tensor]) -> bool:
    """Tell whether any of these tensors is."""
    return any(map(shared, set(map(type, tensors))))


def local(tensor: Tensor) -> Tensor:
    """The memory of a tensor in this process, once it is there; autograd follows if it is on."""
    if torch.is_grad_enabled():
        return tensor.to_local()  # type: ignore[attr-defined, no-any-return]
    held = local_tensor(tensor)
    if not plain(type(held)) and hasattr(held, "wait"):  # of a collective that is under way
        return held.wait()  # type: ignore[no-any-return]
    return held


def version(tensor: Tensor) -> int:
    """How often a tensor's memory in this process was written to, as far as torch knows."""
    return (local_tensor(tensor) if shared(type(tensor)) else tensor)._version


def specs(columns: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
    """Where the shared tensors among these lie: one list for all of them, if there are any."""
    found = [spec(t) for column in columns if any_shared(column) for t in column if shared(type(t))]
    return [found] if found else []


def aligned(params: Sequence[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """The gradients, each laid out as its parameter is: a collective if one is not.

    Raises:
        RuntimeError: A parameter and its gradient are not shared by the same processes, or a
            parameter is a sum of which each process holds a summand.
    """
    if not any_shared(params) and not any_shared(grads):
        return grads
    return [_aligned(param, grad) for param, grad in zip(params, grads, strict=True)]


def check_state(key: str, param: Tensor, value: Tensor) -> None:
    """Raise a RuntimeError for a state that is not laid out as its parameter is."""
    if shared(type(param)) == shared(type(value)) and _together(param, value):
        return
    raise RuntimeError(
        f"{key} lies as {_place(value)}, but its parameter as {_place(param)}: load it through "
        "torch.distributed.checkpoint, or distribute it as the parameter is"
    )


def advance_versions(params: Sequence[Tensor]) -> None:
    """Have autograd see that shared parameters changed: the lowerings wrote to their memory."""
    if any_shared(params):
        increment_version([param for param in params if shared(type(param))])


def _aligned(param: Tensor, grad: Tensor) -> Tensor:
    if not (shared(type(param)) or shared(type(grad))):
        return grad
    if not shared(type(param)) or not shared(type(grad)):
        raise RuntimeError(
            f"a parameter that lies as {_place(param)} has a gradient that lies as {_place(grad)}; "
            "make it one with DTensor.from_local(grad, param.device_mesh, param.placements)"
        )
    ours, theirs = spec(param), spec(grad)
    if any(placement.is_partial() for placement in ours.placements):
        raise RuntimeError(
            f"a parameter lies as {_place(param)}: a step needs its values, and each process holds "
            "a summand; redistribute it first"
        )
    if _together(param, grad):
        return grad
    if ours.mesh != theirs.mesh:
        raise RuntimeError(
            f"a parameter lies as {_place(param)} on {ours.mesh}, but its gradient on "
            f"{theirs.mesh}; give both one mesh"
        )
    return grad.redistribute(placements=ours.placements)  # type: ignore[attr-defined, no-any-return]


def _together(a: Tensor, b: Tensor) -> bool:
    if not shared(type(a)):
        return True
    x, y = spec(a), spec(b)
    return x is y or (x.placements == y.placements and x.mesh == y.mesh)


def _place(tensor: Tensor) -> str:
    return f"DTensor{spec(tensor).placements}" if shared(type(tensor)) else "a plain tensor"
