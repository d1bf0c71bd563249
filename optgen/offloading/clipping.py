"""Compute the norm of all gradients on the device, and the factor that clips them.

The factor is known before the first gradient is stepped, so clipping is exact wherever the step is
hidden. It is a hyperparameter of the host's kernel: no pass over the gradients multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.tensors.dtensor import is_dtensor

_SMALL = 1e-6  # added to the norm, as torch.nn.utils.clip_grad_norm_ does


@torch.no_grad()
def gradient_norm(grads: Sequence[Tensor]) -> float:
    """Return the 2-norm of all gradients, computed in float32 on their devices.

    Norms of sharded gradients are completed by the group of their mesh. The call waits for the
    device.
    """
    by_kind: dict[tuple[torch.device, bool], list[Tensor]] = {}
    for grad in grads:
        norm = torch.linalg.vector_norm(grad, dtype=torch.float32)
        by_kind.setdefault((norm.device, is_dtensor(type(norm))), []).append(norm)
    squared_norm = 0.0
    for (_, is_sharded), norms in by_kind.items():
        total: Any = torch.linalg.vector_norm(torch.stack(norms))
        squared_norm += float(total.full_tensor() if is_sharded else total) ** 2
    return math.sqrt(squared_norm)


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the number that gradients of this norm are multiplied by.

    A norm that is not a number gives a factor that is none, as in torch.
    """
    factor = max_norm / (norm + _SMALL)
    return 1.0 if factor >= 1.0 else factor
