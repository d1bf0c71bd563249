"""Count the collectives of torch.distributed that a process calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch import distributed


@contextmanager
def count_collectives() -> Iterator[Counter[str]]:
    """Yield the counts of the collectives that the block calls, by name."""
    calls: Counter[str] = Counter()
    with ExitStack() as stack:
        for name in ("all_reduce", "all_to_all_single", "all_gather_into_tensor", "broadcast"):
            real = getattr(distributed, name)

            def call(*args: Any, _name: str = name, _real: Any = real, **kwargs: Any) -> Any:
                calls[_name] += 1
                return _real(*args, **kwargs)

            stack.enter_context(mock.patch.object(distributed, name, call))
        yield calls
