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


@contextmanager
def count_sent_bytes() -> Iterator[list[int]]:
    """Yield a list that gets, for each all_to_all_single, the bytes sent to other ranks."""
    real, sent = distributed.all_to_all_single, []

    def call(output: Any, source: Any, received: Any, sizes: list[int], **options: Any) -> Any:
        own = distributed.get_rank(options["group"])
        others = sum(size for rank, size in enumerate(sizes) if rank != own)
        sent.append(others * source.itemsize)
        return real(output, source, received, sizes, **options)

    with mock.patch.object(distributed, "all_to_all_single", call):
        yield sent
