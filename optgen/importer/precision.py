"""Run a class without its roundings to shorter dtypes, as a proof in float64 needs it.

Many classes compute a part in a fixed dtype: a norm in float32, Newton-Schulz steps in bfloat16. In
float64 such a class is as inexact as this dtype. Its rule is what it computes without the rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SHORT = (torch.float32, torch.float16, torch.bfloat16)
CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}


class WithoutRounding(TorchFunctionMode):
    """Replaces shorter floating-point dtypes by float64 in calls of torch.

    Attributes:
        seen: the dtypes that were replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch with float64 for shorter dtypes."""
        name = getattr(func, "__name__", "")
        if name in CASTS and len(args) == 1:
            self.seen.add(CASTS[name])
            return args[0].double()
        args = tuple(self._wide(each) for each in args)
        return func(*args, **{k: self._wide(v) for k, v in (kwargs or {}).items()})

    def _wide(self, x: Any) -> Any:
        if isinstance(x, torch.dtype) and x in SHORT:
            self.seen.add(x)
            return torch.float64
        return x


@contextmanager
def precision(*, is_wide: bool) -> Iterator[set[torch.dtype]]:
    """Leave out roundings if `is_wide`. Yields the dtypes that were replaced."""
    if not is_wide:
        yield set()
        return
    with WithoutRounding() as mode:
        yield mode.seen
