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

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
SHORT = (torch.float32, *SIXTEEN_BITS)
CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}


class WithoutRounding(TorchFunctionMode):
    """Replaces shorter floating-point dtypes by float64 in calls of torch.

    A rounding to 16 bits makes a new tensor of a parameter of any longer dtype; so it does here.

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
        asked = [*args, *(kwargs or {}).values()]
        if name in CASTS and len(args) == 1:
            self.seen.add(CASTS[name])
            asked, result = [CASTS[name]], args[0].double()
        else:
            wide = tuple(self._wide(each) for each in args)
            result = func(*wide, **{k: self._wide(v) for k, v in (kwargs or {}).items()})
        is_short = any(x in SIXTEEN_BITS for x in asked if isinstance(x, torch.dtype))
        return result.clone() if is_short and args and result is args[0] else result

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
