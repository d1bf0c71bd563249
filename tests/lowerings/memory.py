"""What a step moves and what it keeps, read from the operations that torch dispatches."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WRITE_ONLY = ("copy_", "fill_", "zero_")


class Traffic(TorchDispatchMode):
    """Counts `_foreach_` calls, and elements read and written by all operations.

    An operand that is passed twice is read once; 0-dim tensors, which are step counts, are free.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.read = 0
        self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = tensors((args, kwargs))
        if func.is_view or not given:
            return result
        first = tensors(args[0]) if args else {}
        changed = first if func._schema.is_mutable else {}
        made = {k: t for k, t in tensors(result).items() if k not in given}
        name = func._schema.name
        self.calls += "_foreach_" in name
        unread = changed if name.endswith(WRITE_ONLY) else {}
        self.read += sum(t.numel() for key, t in given.items() if key not in unread)
        self.written += sum(t.numel() for t in (*changed.values(), *made.values()))
        return result


class Peak(TorchDispatchMode):
    """The most bytes that were alive at once of all that operations allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = 0
        self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors((args, kwargs)).values():
            self.known.add(tensor.untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        for tensor in tensors(result).values():
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.alive += storage.nbytes()
                self.most = max(self.most, self.alive)
                weakref.finalize(tensor, self._freed, storage._cdata, storage.nbytes())
        return result

    def _freed(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size


def tensors(values: Any) -> dict[int, Tensor]:
    """The tensors in nested arguments, each once, but for those that are single numbers."""
    found = (v for v in tree_leaves(values) if isinstance(v, Tensor))
    return {id(tensor): tensor for tensor in found if tensor.dim()}
