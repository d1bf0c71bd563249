"""The table of backends, and `use_lowering`, which forces the lowering of the next steps."""

from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

FORCED_LOWERING: ContextVar[str | None] = ContextVar("forced lowering", default=None)


current_forced_lowering: Callable[[], str | None] = FORCED_LOWERING.get
"""Return the lowering that `use_lowering` forces in this context; None if it forces none."""


F = TypeVar("F", bound=Callable[..., Any])


class BackendEntry(NamedTuple):
    """A row of the table of backends."""

    title: str  # the lowering's name in messages
    module: str
    device: str | None = None  # the device type whose tensors a fused backend takes by default
    can_be_captured: bool = False  # whether a device's graph can capture a fused backend's steps


BACKENDS = {
    "forloop": BackendEntry("for-loop", "optgen.runtime.eager.backend"),
    "foreach": BackendEntry("foreach", "optgen.runtime.eager.backend"),
    "fused_cpu": BackendEntry("fused C++", "optgen.runtime.fused_cpu.backend", "cpu"),
    "fused_triton": BackendEntry(
        "fused Triton", "optgen.runtime.fused_triton.backend", "cuda", can_be_captured=True
    ),
}
"""The backends by the names of their lowerings. In a step, the last of them updates first.

The C++ kernel must update before the eager backends. If a sparse gradient names rows outside of
its parameter, the kernel raises an error, and nothing else must have been updated by then.
"""

FUSED = {entry.device: name for name, entry in BACKENDS.items() if entry.device}
"""The name of the fused lowering for each type of device."""


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
