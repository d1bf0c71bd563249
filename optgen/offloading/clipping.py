"""Compute the norm of all gradients on the device, and the factor that clips them.

The factor is known before the first gradient is stepped, so clipping is exact wherever the step is
hidden. It is a hyperparameter of the host's kernel: no pass over the gradients multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.tensors.dtensor import is_dtensor, to_local
from optgen.runtime.torch_private import dtensor_spec

_SMALL = 1e-6  # added to the norm, as torch.nn.utils.clip_grad_norm_ does


@torch.no_grad()
def gradient_norm(
    grads: Sequence[Tensor],
    kept_squares: Mapping[Tensor, float] = MappingProxyType({}),
    params: Iterable[Tensor] = (),
    wait: Callable[[torch.device], None] = lambda device: None,
) -> float:
    """Return the 2-norm of all gradients, computed in float32 on their devices.

    Each rank sums the squares of its parts of sharded gradients. The group of their mesh completes
    the sum on the device, by one collective for each kind of sharding. The call waits for the
    device.

    Args:
        grads: The gradients that are on a device.
        kept_squares: The squares of norms of gradients that are on the host: of this rank's parts,
            by their parameters.
        params: All parameters. They say which collectives every rank must enter, in which order.
        wait: Waits until a device has computed the norm, before it is read.
    """
    sums: dict[_Sharding | None, float] = {_sharding(each): 0.0 for each in (*params, *grads)}
    by_kind: dict[tuple[torch.device, _Sharding | None], list[Tensor]] = {}
    for grad in grads:
        norm = torch.linalg.vector_norm(to_local(grad), dtype=torch.float32)
        by_kind.setdefault((norm.device, _sharding(grad)), []).append(norm)
    for (device, sharding), norms in by_kind.items():
        norm = torch.linalg.vector_norm(torch.stack(norms))
        wait(device)
        sums[sharding] += float(norm) ** 2
    for param, square in kept_squares.items():
        sums[_sharding(param)] += square
    totals = [each.completed(sum_) if each else sum_ for each, sum_ in sums.items()]
    return math.sqrt(sum(totals))


class _Sharding(NamedTuple):
    """The ranks that have parts of a tensor.

    `is_shared` tells, for each dimension of the mesh, whether its ranks have different parts.
    """

    mesh: Any
    device: torch.device
    is_shared: tuple[bool, ...]

    def completed(self, local_sum: float) -> float:
        """Return the sum over the ranks that have different parts, by a collective."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        placements = [Partial() if each else Replicate() for each in self.is_shared]
        own = torch.tensor([local_sum], dtype=torch.float32, device=self.device)
        return float(DTensor.from_local(own, self.mesh, placements).full_tensor())


def _sharding(tensor: Tensor) -> _Sharding | None:
    """Return how a DTensor is shared among ranks; None for other tensors."""
    if not is_dtensor(type(tensor)):
        return None
    spec = dtensor_spec(tensor)
    is_shared = tuple(not each.is_replicate() for each in spec.placements)
    return _Sharding(spec.mesh, to_local(tensor.detach()).device, is_shared)


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the number that gradients of this norm are multiplied by.

    A norm that is not a number gives a factor that is none, as in torch.
    """
    factor = max_norm / (norm + _SMALL)
    return 1.0 if factor >= 1.0 else factor
