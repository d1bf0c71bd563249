"""`use_lowering`: force the lowering of the steps that follow."""

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar

from optgen.runtime.backends import BACKENDS
from optgen.runtime.forced_lowering import FORCED_LOWERING

F = TypeVar("F", bound=Callable[..., Any])


class use_lowering(ContextDecorator):
    """Take every following step through one lowering; a step raises if the lowering cannot take it.

    As a plain statement, a call holds until the next call; after `use_lowering(None)` the runtime
    chooses again. In a `with` statement, a call holds in the block; as a decorator, during calls of
    the function. Each thread chooses for itself.

    Args:
        name: "forloop", "foreach", "fused_cpu" or "fused_triton"; for CPU tensors, "fused_triton"
            runs Triton's interpreter. None forces no lowering.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in BACKENDS:
            raise ValueError(f"unknown lowering {name!r}; there are {', '.join(BACKENDS)}")
        self._name, self._previous_name = name, FORCED_LOWERING.get()
        FORCED_LOWERING.set(name)

    def __enter__(self) -> None:
        FORCED_LOWERING.set(self._name)

    def __exit__(self, *raised: object) -> None:
        FORCED_LOWERING.set(self._previous_name)

    def __call__(self, function: F) -> F:
        """Decorate a function: the lowering holds during its calls only."""
        FORCED_LOWERING.set(self._previous_name)
        return super().__call__(function)

    def _recreate_cm(self) -> "use_lowering":
        return use_lowering(self._name)
