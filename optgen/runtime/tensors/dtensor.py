"""Tensors as lowerings compute with them: real, and local on each rank.

A DTensor is a local tensor on every rank, and a spec: the device mesh, and a placement for each
dimension of the mesh. Lowerings see the local tensor. So a gradient must have its parameter's mesh
and placements before a step. A gradient with other placements, such as Partial, is redistributed.
A redistribution is a collective, which every rank must enter.
"""

import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from optgen.runtime.torch_private import dtensor_spec, is_plain_class, local_tensor

_PROPERTIES: tuple[Callable[[Tensor], Any], ...] = (
    type,
    *map(attrgetter, ("dtype", "device", "shape")),
)


def is_dtensor(tensor_class: type[Any]) -> bool:
    """Tell whether a tensor class is DTensor or derived from it, without importing DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and issubclass(tensor_class, module.DTensor)


def any_dtensor(tensors: Sequence[Tensor]) -> bool:
    """Tell whether any of these tensors is a DTensor."""
    return bool(_dtensor_classes(tensors))


def to_local(tensor: Tensor) -> Tensor:
    """Return a DTensor's local tensor, and any other tensor itself; see `to_locals`."""
    return to_locals([tensor])[0]


def to_locals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a new list of the local tensors of DTensors, and all other tensors themselves.

    If autograd is enabled, it records the conversion. The call waits for pending collectives.
    """
    classes = _dtensor_classes(tensors)
    if not classes:
        return list(tensors)
    if torch.is_grad_enabled():
        return [t.to_local() if type(t) in classes else t for t in tensors]  # type: ignore[attr-defined]
    locals_ = (local_tensor(t) if type(t) in classes else t for t in tensors)
    return list(map(_wait_for_collective, locals_))


def memory_version(tensor: Tensor) -> int:
    """Return autograd's version counter of a tensor, or of a DTensor's local tensor."""
    return (local_tensor(tensor) if is_dtensor(type(tensor)) else tensor)._version


def dtensor_signature(columns: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
    """Return lists with properties of all DTensors; [] if there is no DTensor.

    The lists hold the specs, and the classes, dtypes, devices and shapes of the local tensors. A
    local tensor may have another dtype and shape than its DTensor's spec says.
    """
    dtensors: list[Tensor] = []
    for column in columns:
        if classes := _dtensor_classes(column):
            dtensors += [tensor for tensor in column if type(tensor) in classes]
    if not dtensors:
        return []
    locals_ = list(map(local_tensor, dtensors))
    return [list(map(dtensor_spec, dtensors)), *(list(map(get, locals_)) for get in _PROPERTIES)]


def misplaced_gradients(params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[int]:
    """Return the indices of the gradients whose mesh or placements are not their parameter's."""
    if not (any_dtensor(params) or any_dtensor(grads)):
        return []
    pairs = enumerate(zip(params, grads, strict=True))
    return [index for index, (param, grad) in pairs if not same_sharding(param, grad)]


def redistribute_gradients(params: Sequence[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Return the gradients, each with the placements of its parameter.

    A gradient with other placements is redistributed, by a collective.

    Raises:
        RuntimeError: A parameter and its gradient are not on the same mesh, or only one of them is
            a DTensor, or a parameter has a Partial placement.
    """
    misplaced_indices = misplaced_gradients(params, grads)
    if not misplaced_indices:
        return grads
    result = list(grads)
    for index in misplaced_indices:
        result[index] = _redistribute(params[index], grads[index])
    return result


def check_not_partial(params: Sequence[Tensor]) -> None:
    """Raise a RuntimeError for a parameter with a Partial placement."""
    for param in params if any_dtensor(params) else ():
        if is_dtensor(type(param)) and any(p.is_partial() for p in dtensor_spec(param).placements):
            raise RuntimeError(
                f"a parameter is a {placement_text(param)}: a step needs its values, but each "
                "rank holds a summand; redistribute the parameter before the step"
            )


def check_state_sharding(key: str, param: Tensor, value: Tensor) -> None:
    """Raise a RuntimeError if the mesh or placements of a state are not its parameter's."""
    if same_sharding(param, value):
        return
    raise RuntimeError(
        f"{key} is a {placement_text(value)}, but its parameter is a {placement_text(param)}: "
        "load it through torch.distributed.checkpoint, or give it the parameter's placements"
    )


def same_sharding(a: Tensor, b: Tensor) -> bool:
    """Tell whether the same ranks hold the same shards of both tensors."""
    if not (is_dtensor(type(a)) and is_dtensor(type(b))):
        return is_dtensor(type(a)) == is_dtensor(type(b))
    return _equal_specs(dtensor_spec(a), dtensor_spec(b))


def _equal_specs(a: Any, b: Any) -> bool:
    if a is b:
        return True
    have_same_mesh: bool = a.mesh is b.mesh or a.mesh == b.mesh
    return have_same_mesh and a.placements == b.placements


def advance_versions(params: Sequence[Tensor]) -> None:
    """Advance autograd's version counters of DTensors; lowerings advance those of local tensors."""
    if any_dtensor(params):
        increment_version([param for param in params if is_dtensor(type(param))])


def _dtensor_classes(tensors: Sequence[Tensor]) -> set[type[Any]]:
    return set(filter(is_dtensor, set(map(type, tensors))))


def _wait_for_collective(tensor: Tensor) -> Tensor:
    """Return a tensor; wait for the collective that computes it, if one is under way."""
    if not is_plain_class(type(tensor)) and hasattr(tensor, "wait"):
        return tensor.wait()  # type: ignore[no-any-return]
    return tensor


def _redistribute(param: Tensor, grad: Tensor) -> Tensor:
    """Return one gradient with the placements of its parameter."""
    if not is_dtensor(type(param)) or not is_dtensor(type(grad)):
        raise RuntimeError(
            f"a parameter is a {placement_text(param)}, but its gradient is a "
            f"{placement_text(grad)}; make both DTensors, the gradient with "
            "DTensor.from_local(grad, param.device_mesh, param.placements)"
        )
    param_spec, grad_spec = dtensor_spec(param), dtensor_spec(grad)
    check_not_partial([param])
    if param_spec.mesh != grad_spec.mesh:
        raise RuntimeError(
            f"a parameter is a {placement_text(param)} on {param_spec.mesh}, but its gradient is "
            f"on {grad_spec.mesh}; distribute both over one mesh"
        )
    return grad.redistribute(placements=param_spec.placements)  # type: ignore[attr-defined, no-any-return]


def placement_text(tensor: Tensor) -> str:
    """Return a few words about a tensor's placements, for messages and to compare ranks."""
    if not is_dtensor(type(tensor)):
        return "plain tensor"
    return f"DTensor{dtensor_spec(tensor).placements}"


_dtype = attrgetter("dtype")


def real_local_views(tensors: list[Tensor], written: bool = False) -> list[Tensor]:
    """Return a new list of the tensors as a lowering sees them.

    A lowering sees a complex tensor as a real one with a last axis of size 2. It sees a conjugate
    view as a copy; if the tensors are `written`, torch's error is raised for such a view instead.
    """
    local = to_locals(tensors)
    if not any(dtype.is_complex for dtype in set(map(_dtype, local))):
        return local
    return [_real(tensor, written) for tensor in local]


def _real(tensor: Tensor, written: bool) -> Tensor:
    """View a dense complex tensor as pairs of real numbers; return any other tensor itself."""
    if tensor.is_complex() and not tensor.is_sparse:
        return torch.view_as_real(tensor if written else tensor.resolve_conj())
    return tensor


def all_plain(tensors: Sequence[Tensor]) -> bool:
    """Tell whether no tensor is of a class that overrides operations."""
    return all(map(is_plain_class, set(map(type, tensors))))
