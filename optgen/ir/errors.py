"""Define the error for a valid rule that a pass cannot handle."""

from __future__ import annotations

from optgen.ir.nodes import Place


class RuleError(Exception):
    """A rule that cannot be planned: the place, what is wrong, and a hint."""

    def __init__(self, place: Place, message: str, hint: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.hint = hint
