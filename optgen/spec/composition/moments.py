"""Find the place in a rule where modifiers of its second moment run."""

from __future__ import annotations

import ast
from collections.abc import Sequence


def rest_after(body: Sequence[ast.stmt], name: str) -> list[ast.stmt] | None:
    """Return the statements after the last assignment of a state.

    Return None if that assignment stands in a branch, or if there is none.
    """
    positions = [position for position, stmt in enumerate(body) if _assigns(stmt, name)]
    if not positions or not isinstance(body[positions[-1]], ast.Assign):
        return None
    return list(body[positions[-1] + 1 :])


def reads(stmt: ast.stmt, name: str) -> bool:
    """Tell whether a statement reads a name."""
    return any(n.id == name and not isinstance(n.ctx, ast.Store) for n in _names(stmt))


def _assigns(stmt: ast.stmt, name: str) -> bool:
    return any(n.id == name and isinstance(n.ctx, ast.Store) for n in _names(stmt))


def _names(stmt: ast.stmt) -> list[ast.Name]:
    return [node for node in ast.walk(stmt) if isinstance(node, ast.Name)]
