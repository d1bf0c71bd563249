"""Describe findings; those of the same fault should have the same signature."""

from __future__ import annotations

import ast
import re
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optgen.spec.errors import InternalError

if TYPE_CHECKING:
    from fuzz.trial import Setting

KINDS = ("wrong", "crashed", "does not compile")
_PYTHON = ("forloop", "foreach", "functional", "sharded")
"""Lowerings that mostly fail together."""


@dataclass(frozen=True)
class Finding:
    """A rule that a lowering gets wrong: the kind of failure, the message, and the setting."""

    kind: str  # one of KINDS
    lowering: str
    message: str
    text: str
    setting: Setting | None = None

    @property
    def signature(self) -> tuple[str, str, str]:
        """Return kind, lowering and message, without names and numbers."""
        message = "" if self.kind == "wrong" else self.message
        message = re.sub(r"[‘'`\"][^’'`\"]*[’'`\"]|0x\w+|\d+(\.\d+)?", "#", message)
        lowering = (
            "python" if self.kind == "crashed" and self.lowering in _PYTHON else self.lowering
        )
        return self.kind, lowering, message[:160]

    @property
    def cause(self) -> tuple[str, ...]:
        """Return the signature; for a wrong value also the rule's ops and operators."""
        return *self.signature, *(_ops_and_operators(self.text) if self.kind == "wrong" else ())


def _ops_and_operators(text: str) -> list[str]:
    """Return the ops and operators of a rule, without names and numbers."""
    rule = next(
        n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.decorator_list
    )
    names = set()
    for statement in rule.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names.add(node.func.id)
            elif isinstance(node, ast.operator | ast.unaryop | ast.cmpop | ast.If | ast.Tuple):
                names.add(type(node).__name__)
    return sorted(names)


def finding_of_exception(
    error: Exception, lowering: str, text: str, setting: Any = None
) -> Finding:
    """Return the finding for an exception; its message ends with the file that raised it."""
    original = error.__cause__ or error.__context__
    if isinstance(error, InternalError) and isinstance(original, Exception):
        error = original  # it has the more exact message
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "/optgen" in f.filename), frames[-1])
    file_name = last.filename.rpartition("/")[2]
    message = str(error).partition("\n")[0]
    return Finding(
        "crashed", lowering, f"{type(error).__name__}: {message} ({file_name})", text, setting
    )
