"""`use_lowering`: force the lowering of the steps that follow."""

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar

from optgen.runtime.backends import BACKENDS
from optgen.runtime.forced import FORCED

F = TypeVar("F", bound=Callable[..., Any])


class use_lowering(ContextDecorator):
    """Take every step from here on through one lowering, or raise if it cannot run.

    As a statement it holds until the next call, and `use_lowering(None)` leaves the choice to the
    runtime again; in `with`, or as a decorator, it holds inside. It is a matter of each thread.

    Args:
        name: "forloop", "foreach", "fused_cpu" or "fused_triton"; on CPU tensors this last one
            means Triton's interpreter. None for no such wish.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in BACKENDS:
            raise ValueError(f"unknown lowering {name!r}; there are {', '.join(BACKENDS)}")
        self._name, self._before = name, FORCED.get()
        FORCED.set(name)

    def __enter__(self) -> None:
        FORCED.set(self._name)

    def __exit__(self, *raised: object) -> None:
        FORCED.set(self._before)

    def __call__(self, function: F) -> F:
        """Decorate a function: it is called inside, and nothing holds before."""
        FORCED.set(self._before)
        return super().__call__(function)

    def _recreate_cm(self) -> "use_lowering":
        return use_lowering(self._name)
