"""Changes of one tensor between two steps: of its object, its storage, or the place that holds it.

A slot is such a place: `.data`, `.grad`, a state's key, or the local tensor of a DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Change = Callable[["Slot", list["Slot"]], None]


@dataclass(frozen=True)
class Slot:
    """A place that holds a tensor."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]


def slots_of(optimizer: Any, params: list[Tensor]) -> list[Slot]:
    """Return the places of all parameters, gradients and states, and of their local tensors."""
    slots = []
    for index, param in enumerate(params):
        slots.append(_attribute(f"param {index}", param, "data"))
        slots.append(_attribute(f"grad {index}", param, "grad"))
        for key in optimizer.state.get(param, {}):
            slots.append(_entry(f"{key} {index}", optimizer.state[param], key))
    for index, group in enumerate(optimizer.param_groups):
        keys = [key for key, value in group.items() if isinstance(value, Tensor)]
        slots += [_entry(f"{key} of group {index}", group, key) for key in keys]
    return [*slots, *_local_slots(slots, params)]


def _attribute(name: str, owner: Any, attribute: str) -> Slot:
    return Slot(
        name,
        lambda: getattr(owner, attribute),
        lambda value: setattr(owner, attribute, value),
    )


def _entry(name: str, owner: dict[str, Any], key: str) -> Slot:
    return Slot(name, lambda: owner[key], lambda value: owner.__setitem__(key, value))


def _local_slots(slots: list[Slot], params: list[Tensor]) -> Iterator[Slot]:
    for slot in slots:
        if hasattr(slot.get(), "_local_tensor"):
            yield _attribute(f"local {slot.name}", slot.get(), "_local_tensor")
    for index, param in enumerate(params):
        if hasattr(param, "_local_tensor"):
            yield _attribute(f"local of param {index}", param, "_local_tensor")


def _new(change: Callable[[Tensor], Any]) -> Change:
    """Return a change that puts another object into a slot."""
    return lambda slot, _: slot.put(change(slot.get()))


def _data(change: Callable[[Tensor], Tensor]) -> Change:
    """Return a change of `.data`, which keeps the object."""

    def apply(slot: Slot, _: list[Slot]) -> None:
        tensor = slot.get()
        tensor.data = change(tensor.detach())

    return apply


def _in_place(change: Callable[[Tensor], Any]) -> Change:
    """Return a change of an object in place."""

    def apply(slot: Slot, _: list[Slot]) -> None:
        with torch.no_grad():
            change(slot.get().detach())

    return apply


def _part(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)[: tensor.numel() // 2].clone()


def _with_gaps(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0]


def _in_inference_mode(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _without_memory(tensor: Tensor) -> Tensor:
    copy = tensor.clone()
    torch._C._set_throw_on_mutable_data_ptr(copy)
    return copy


def _another(slot: Slot, slots: list[Slot]) -> Slot:
    return slots[(slots.index(slot) + 1) % len(slots)]


def _swap(slot: Slot, slots: list[Slot]) -> None:
    other = _another(slot, slots)
    mine, its = slot.get(), other.get()
    slot.put(its)
    other.put(mine)


def _swap_data(slot: Slot, slots: list[Slot]) -> None:
    mine, its = slot.get(), _another(slot, slots).get()
    mine.data, its.data = its.data, mine.data


def _alias(slot: Slot, slots: list[Slot]) -> None:
    slot.put(_another(slot, slots).get())


def _alias_data(slot: Slot, slots: list[Slot]) -> None:
    slot.get().data = _another(slot, slots).get().data


_SHAPES: dict[str, Callable[[Tensor], Any]] = {
    "a copy": torch.clone,
    "a part": _part,
    "twice the rows": lambda t: torch.cat([t, t]),
    "one element": lambda t: torch.ones((), dtype=t.dtype),
    "no elements": lambda t: torch.ones(0, dtype=t.dtype),
    "flat": lambda t: t.reshape(-1).clone(),
    "float64": lambda t: t.to(torch.float64),
    "bfloat16": lambda t: t.to(torch.bfloat16),
    "int8": lambda t: t.to(torch.int8),
    "complex": lambda t: t.to(torch.complex64),
    "transposed": lambda t: t.t().contiguous().t() if t.dim() == 2 else t.clone(),
    "gaps": _with_gaps,
    "expanded": lambda t: torch.ones((), dtype=t.dtype).expand(t.shape),
    "negated": lambda t: torch._neg_view(t),
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
}
_OBJECTS: dict[str, Callable[[Tensor], Any]] = {
    "None": lambda t: None,
    "a number": lambda t: 1.0,
    "a subclass": lambda t: t.as_subclass(torch.nn.Parameter),
    "inference": _in_inference_mode,
    "no memory": _without_memory,
}
_MEMORY: dict[str, Callable[[Tensor], Any]] = {
    "resized to a part": lambda t: t.resize_(max(t.numel() // 2, 1)),
    "resized to more": lambda t: t.resize_(2 * t.numel() + 3),
    "half a storage": lambda t: t.untyped_storage().resize_(t.untyped_storage().nbytes() // 2),
    "no storage": lambda t: t.untyped_storage().resize_(0),
    "storage of others": lambda t: t.set_(torch.ones(7, dtype=t.dtype).untyped_storage()),
    "other strides": lambda t: t.as_strided_((t.numel(),), (0,)),
    "throws": torch._C._set_throw_on_mutable_data_ptr,
}
CHANGES: dict[str, Change] = {
    **{f"replaced: {name}": _new(change) for name, change in {**_SHAPES, **_OBJECTS}.items()},
    **{f"data: {name}": _data(change) for name, change in _SHAPES.items()},
    **{f"memory: {name}": _in_place(change) for name, change in _MEMORY.items()},
    "swapped": _swap,
    "data swapped": _swap_data,
    "an alias": _alias,
    "data an alias": _alias_data,
}
