"""Where the parts of a parameter lie, and how it was cut into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.torch_private import local_tensor, spec

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# A mesh takes 30 us to tell a size, and is asked for each parameter of a step.
_known_sizes: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()


class ShardedAxis(NamedTuple):
    """One way in which each parameter is cut: along an axis, a piece for each rank of a group."""

    group: ProcessGroup
    axis: int
    pieces: int  # as many as the group has ranks; the last ones may be small or empty
    own: int  # which of them is here

    def sizes(self, length: int) -> list[int]:
        """How long each piece of an axis is."""
        size = -(-length // self.pieces)
        return [max(0, min(size, length - size * piece)) for piece in range(self.pieces)]


class Sharding(NamedTuple):
    """Where the parts of a parameter lie: parameters that lie alike step together."""

    mesh: Any
    placements: tuple[Any, ...]

    def cuts(self) -> tuple[ShardedAxis, ...]:
        """How such parameters are cut, the first cut first.

        torch cuts along one dimension of the mesh after the other. FSDP2 cuts what tensor parallel
        has cut before, along an earlier dimension: its placement says how many pieces there were.
        """
        cuts: list[ShardedAxis] = []
        for dim in reversed(range(len(self.placements))):
            axis, size = sharded_axis_of(self.placements[dim]), self.mesh.size(dim)
            if axis is not None and size > 1:
                pieces, place = getattr(self.placements[dim], "split_factor", 1), 0
                while pieces > 1 and place < len(cuts):
                    pieces //= cuts[place].pieces if cuts[place].axis == axis else 1
                    place += 1
                group, own = self.mesh.get_group(dim), self.mesh.get_local_rank(dim)
                cuts.insert(place, ShardedAxis(group, axis, size, own))
        return tuple(cuts)

    def is_even(self, tensor: Tensor) -> bool:
        """Tell whether this process's part has the size that such cuts leave it."""
        shape = list(tensor.shape)
        for cut in self.cuts():
            shape[cut.axis] = cut.sizes(shape[cut.axis])[cut.own]
        return shape == list(local_tensor(tensor).shape)


def sharded_axis_of(placement: Any) -> int | None:
    """The axis of a tensor along which a placement cuts it; None where every process has it all."""
    axis: int | None = getattr(placement, "dim", None)
    return axis


def sharding_of(tensor: Tensor) -> Sharding | None:
    """Where the parts of a tensor lie; None of one that this process has as a whole."""
    if not is_dtensor(type(tensor)):
        return None
    lying = spec(tensor)
    pairs = zip(lying.placements, _sizes(lying.mesh), strict=True)
    is_cut = any(sharded_axis_of(placement) is not None and size > 1 for placement, size in pairs)
    return Sharding(lying.mesh, lying.placements) if is_cut else None


def _sizes(mesh: Any) -> tuple[int, ...]:
    known = _known_sizes.get(mesh)
    if known is None:
        known = _known_sizes[mesh] = tuple(map(mesh.size, range(mesh.ndim)))
    return known


def zeros_reduced(tensor: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """Zeros for what a sum over one axis of a tensor in parts leaves: the axis stays, of size 1.

    They lie as the tensor does, but that every process has all of what is left of that axis: so a
    DTensor comes of a DTensor.
    """
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(tensor, DTensor)
    axis %= tensor.dim()
    placements = [Replicate() if sharded_axis_of(p) == axis else p for p in tensor.placements]
    whole, held = list(tensor.shape), list(local_tensor(tensor).shape)
    whole[axis] = held[axis] = 1
    made: Tensor = DTensor.from_local(
        torch.zeros(held, dtype=dtype, device=tensor.device),
        tensor.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(whole),
        stride=torch.empty(whole, device="meta").stride(),
    )
    return made
