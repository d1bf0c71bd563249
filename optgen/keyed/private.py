"""Every private name of torch that keyed optimizers use, and its tensors spread over ranks.

Nothing is imported to ask what a tensor is: the module of its class is there if the tensor is.
"""

import sys
from typing import Any


def _isinstance(value: object, module: str, name: str) -> bool:
    kind: Any = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def is_sharded_tensor(value: object) -> bool:
    """Tell whether this is a ShardedTensor, the older form of a tensor spread over ranks."""
    return _isinstance(value, "torch.distributed._shard.sharded_tensor", "ShardedTensor")


def is_dtensor(value: object) -> bool:
    """Tell whether this is a DTensor."""
    return _isinstance(value, "torch.distributed.tensor", "DTensor")
