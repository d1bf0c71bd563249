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

from optgen.runtime.torch_private import local_tensor, plain, spec


def is_dtensor(kind: type[Any]) -> bool:
    """Tell whether tensors of this class are held by several processes together."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and issubclass(kind, module.DTensor)


def any_dtensor(tensors: Sequence[Tensor]) -> bool:
    """Tell whether any of these tensors is."""
    return bool(_shared_kinds(tensors))


def local(tensor: Tensor) -> Tensor:
    """The memory of a tensor in this process, once it is there; autograd follows if it is on."""
    return locals_of([tensor])[0]


def locals_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same of several tensors, some of them shared."""
    kinds = _shared_kinds(tensors)
    if not kinds:
        return list(tensors)
    if torch.is_grad_enabled():
        return [t.to_local() if type(t) in kinds else t for t in tensors]  # type: ignore[attr-defined]
    return list(map(_arrived, (local_tensor(t) if type(t) in kinds else t for t in tensors)))


def version(tensor: Tensor) -> int:
    """How often a tensor's memory in this process was written to, as far as torch knows."""
    return (local_tensor(tensor) if is_dtensor(type(tensor)) else tensor)._version


def specs(columns: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
    """Where the shared tensors among these lie: one list for all of them, if there are any."""
    found: list[Any] = []
    for column in columns:
        if kinds := _shared_kinds(column):
            found += [spec(tensor) for tensor in column if type(tensor) in kinds]
    return [found] if found else []


def redistributed(params: Sequence[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """The gradients, each laid out as its parameter is: a collective if one is not.

    Raises:
        RuntimeError: A parameter and its gradient are not shared by the same processes, or a
            parameter is a sum of which each process holds a summand.
    """
    kinds = _shared_kinds(params) | _shared_kinds(grads)
    if not kinds:
        return grads
    return [
        grad
        if type(param) in kinds and type(grad) in kinds and _alike(spec(param), spec(grad))
        else _aligned(param, grad)
        for param, grad in zip(params, grads, strict=True)
    ]


def check_summed(params: Sequence[Tensor]) -> None:
    """Raise a RuntimeError for a parameter of which each process holds a summand."""
    for param in params if any_dtensor(params) else ():
        if is_dtensor(type(param)) and any(p.is_partial() for p in spec(param).placements):
            raise RuntimeError(
                f"a parameter lies as {_place(param)}: a step needs its values, and each process "
                "holds a summand; redistribute it first"
            )


def check_state_sharding(key: str, param: Tensor, value: Tensor) -> None:
    """Raise a RuntimeError for a state that is not laid out as its parameter is."""
    if same_sharding(param, value):
        return
    raise RuntimeError(
        f"{key} lies as {_place(value)}, but its parameter as {_place(param)}: load it through "
        "torch.distributed.checkpoint, or distribute it as the parameter is"
    )


def same_sharding(a: Tensor, b: Tensor) -> bool:
    """Tell whether the same processes hold the same parts of both."""
    if not (is_dtensor(type(a)) and is_dtensor(type(b))):
        return is_dtensor(type(a)) == is_dtensor(type(b))
    return _alike(spec(a), spec(b))


def _alike(a: Any, b: Any) -> bool:
    if a is b:
        return True
    same_mesh: bool = a.mesh is b.mesh or a.mesh == b.mesh
    return same_mesh and a.placements == b.placements


def advance_versions(params: Sequence[Tensor]) -> None:
    """Have autograd see that shared parameters changed: the lowerings wrote to their memory."""
    if any_dtensor(params):
        increment_version([param for param in params if is_dtensor(type(param))])


def _shared_kinds(tensors: Sequence[Tensor]) -> set[type[Any]]:
    return set(filter(is_dtensor, set(map(type, tensors))))


def _arrived(tensor: Tensor) -> Tensor:
    """The tensor itself, or what a collective that is under way will bring."""
    if not plain(type(tensor)) and hasattr(tensor, "wait"):
        return tensor.wait()  # type: ignore[no-any-return]
    return tensor


def _aligned(param: Tensor, grad: Tensor) -> Tensor:
    if not (is_dtensor(type(param)) or is_dtensor(type(grad))):
        return grad
    if not is_dtensor(type(param)) or not is_dtensor(type(grad)):
        raise RuntimeError(
            f"a parameter that lies as {_place(param)} has a gradient that lies as {_place(grad)}; "
            "make it one with DTensor.from_local(grad, param.device_mesh, param.placements)"
        )
    ours, theirs = spec(param), spec(grad)
    check_summed([param])
    if ours.mesh != theirs.mesh:
        raise RuntimeError(
            f"a parameter lies as {_place(param)} on {ours.mesh}, but its gradient on "
            f"{theirs.mesh}; give both one mesh"
        )
    return grad.redistribute(placements=ours.placements)  # type: ignore[attr-defined, no-any-return]


def _place(tensor: Tensor) -> str:
    return f"DTensor{spec(tensor).placements}" if is_dtensor(type(tensor)) else "a plain tensor"
