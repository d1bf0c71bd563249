"""Divide parameters into buckets: what a slot of the ring holds, and a call of the kernel steps.

A bucket holds parameters of one device, side by side. A parameter that is larger than a bucket is
divided into pieces if the rule is elementwise: then each of its elements steps by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from optgen.runtime.tensors.dtensor import is_dtensor, to_local
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.torch_private import data_ptr

ALIGNMENT = 64
"""Pieces begin at multiples of this many bytes, a cache line."""


class HostStates(dict[str, Tensor]):
    """The states of a parameter on the host.

    To replace a state by a tensor of its shape is to write into it, wherever the tensor is: some
    frameworks move the states of every optimizer to the device of its parameters.
    """

    @torch.no_grad()
    def __setitem__(self, key: str, value: Tensor) -> None:
        """Write into the state if there is one that `value` fits, else set it."""
        own = self.get(key)
        if own is None or own is value or not _fits(value, own):
            super().__setitem__(key, value)
        else:
            to_local(own).copy_(to_local(value))


def _fits(value: object, own: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.shape != own.shape:
        return False
    return is_dtensor(type(value)) == is_dtensor(type(own))


class Kind(NamedTuple):
    """The properties of a parameter that the machinery on the host is made for."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    is_contiguous: bool

    @classmethod
    def of(cls, param: Tensor) -> Kind:
        """Return that of a parameter's part on this rank."""
        local = to_local(param.detach())
        return cls(local.dtype, local.device, local.shape, local.is_contiguous())

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        return self.shape.numel() * self.dtype.itemsize

    def __str__(self) -> str:
        memory = "" if self.is_contiguous else ", not contiguous"
        return f"{self.dtype}, {tuple(self.shape)}, {self.device}{memory}"


@dataclass(frozen=True, eq=False)
class HostParam:
    """A parameter that is stepped on the host, and its states there.

    `states` is the parameter's entry in the optimizer's state, after its first step. States that no
    step has made yet, such as SGD's momentum, wait in `unmade`. `order` has the keys in a
    checkpoint's order. `new` has the keys of states whose values no step has used. `kind` is that
    of the parameter when the optimizer was made.
    """

    param: Tensor
    name: str
    group_index: int
    states: dict[str, Tensor]
    unmade: dict[str, Tensor] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    new: set[str] = field(default_factory=set)
    kind: Kind | None = None

    @property
    def local(self) -> Tensor:
        """The part of the parameter that is on this rank."""
        return to_local(self.param.detach())

    def show_made(self) -> None:
        """Move the states that the first step has made into the optimizer's state, in order."""
        made = {**self.states, **self.unmade}
        self.states.clear()
        self.unmade.clear()
        self.states.update({key: made[key] for key in self.order})

    def tensor(self, key: str) -> Tensor | None:
        """Return a state, made or not; None if the parameter has no such state."""
        value = self.states.get(key)
        return self.unmade.get(key) if value is None else value

    @torch.no_grad()
    def memory(self, key: str) -> tuple[int, int, torch.dtype] | None:
        """Return the address, the number of elements and the dtype of a state, if there is one.

        `detach` would decode a quantized state into other memory.
        """
        if (value := self.tensor(key)) is None:
            return None
        local = to_local(value)
        if isinstance(local, QuantizedTensor):
            return data_ptr(local.codes), local.numel(), local.codes.dtype
        return data_ptr(local), local.numel(), local.dtype

    def drop(self, keys: Iterable[str]) -> None:
        """Let states go that the options of the group do not ask for."""
        for key in keys:
            self.states.pop(key, None)
            self.unmade.pop(key, None)
            self.new.discard(key)
            self.order.remove(key)


@dataclass(frozen=True, eq=False)
class Piece:
    """Elements of a parameter, and their place in a slot."""

    owner: HostParam
    first: int  # element of the parameter
    count: int  # of elements
    offset: int  # in the slot, in bytes
    is_whole: bool

    @property
    def is_first(self) -> bool:
        """Tell whether this piece has the parameter's first element."""
        return self.first == 0

    def of(self, tensor: Tensor) -> Tensor:
        """Return these elements of a tensor of the parameter's shape."""
        if self.is_whole:
            return tensor
        return tensor.reshape(-1)[self.first : self.first + self.count]

    def in_slot(self, slot: Tensor) -> Tensor:
        """Return the piece's place in a slot, in the parameter's dtype and shape."""
        local = self.owner.local
        view = slot[self.offset : self.offset + self.count * local.element_size()].view(local.dtype)
        return view.view(local.shape) if self.is_whole else view


@dataclass(frozen=True, eq=False)
class Bucket:
    """Pieces of one device that fill a slot."""

    index: int
    device: torch.device
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        """The name of the first parameter, for messages."""
        return self.pieces[0].owner.name

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        return sum(each.count * each.owner.local.element_size() for each in self.pieces)


def divide(params: Iterable[HostParam], bucket_bytes: int, may_split: bool) -> list[Bucket]:
    """Divide parameters into buckets, in their order.

    Raises:
        ValueError: A parameter is larger than a bucket, and cannot be divided.
    """
    by_device: dict[torch.device, list[HostParam]] = {}
    for each in params:
        by_device.setdefault(each.local.device, []).append(each)
    buckets: list[Bucket] = []
    for device, owners in by_device.items():
        pieces: list[Piece] = []
        end = 0
        for owner in owners:
            size = owner.local.element_size()
            for first, count in _ranges(owner, bucket_bytes, may_split):
                if pieces and end + count * size > bucket_bytes:
                    buckets.append(Bucket(len(buckets), device, tuple(pieces)))
                    pieces, end = [], 0
                is_whole = count == owner.local.numel()
                pieces.append(Piece(owner, first, count, end, is_whole))
                end += -(-count * size // ALIGNMENT) * ALIGNMENT
        if pieces:
            buckets.append(Bucket(len(buckets), device, tuple(pieces)))
    return buckets


def _ranges(owner: HostParam, bucket_bytes: int, may_split: bool) -> Iterator[tuple[int, int]]:
    """Yield the first element and the number of elements of each piece of a parameter."""
    local = owner.local
    largest, total = bucket_bytes // local.element_size(), local.numel()
    if total <= largest:
        yield 0, total
        return
    if not (may_split and local.is_contiguous()):
        reason = "is not contiguous" if may_split else "is stepped as a whole by this rule"
        raise ValueError(
            f"{owner.name} has {total * local.element_size():,} bytes and {reason}, so it does not "
            f"fit into a bucket of {bucket_bytes:,} bytes: pass a larger bucket_bytes="
        )
    for first in range(0, total, largest):
        yield first, min(largest, total - first)
