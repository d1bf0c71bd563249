"""What a pass may find wrong with a rule that the language allows."""

from __future__ import annotations

from optgen.ir.nodes import Place


class RuleError(Exception):
    """A rule that cannot be planned: where, what, and the way out."""

    def __init__(self, place: Place, message: str, hint: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.hint = hint
