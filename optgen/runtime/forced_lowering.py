"""The lowering that `use_lowering` forces in the current context."""

from contextvars import ContextVar

FORCED_LOWERING: ContextVar[str | None] = ContextVar("forced lowering", default=None)


def current_forced_lowering() -> str | None:
    """Return the lowering that `use_lowering` forces in this context; None if it forces none."""
    return FORCED_LOWERING.get()
