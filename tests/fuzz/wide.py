"""Let a drawn rule reduce over several parameters, and keep a state of the group, now and then."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.trial import Setting

WORDS = ("sum", "mean", "norm", "rms", "max_abs")
_FIRST = re.compile(r"^    _?beta1, _?beta2 = betas\n", re.M)
_SIGNATURE = re.compile(r"^    p, g, .*/,$", re.M)
_NO_TENSOR = re.compile(r"row_|col_|diag|trace|eigen|\b[rk]\b|\br[12]\b|\bc[12]\b|@|transpose")
_MATRICES = re.compile(r"orthogonalize|@ |transpose|\", \"(rows|cols|rank)\"\)")
_STATES = (
    "hd = 0.5 * hd + 0.25 * {wide}",
    "hd = hd + 1\n    hd = minimum(hd, 3 + {wide})",
    "hd = where({wide} > 0.5, 0.5 * hd, tanh({wide}))",
    "hd = maximum(hd, {wide}) - hd / (1 + {wide}**2)",
    "hd = lerp(hd, {wide} - {wide}, 0.25)",
)
_USES = ("g = g / (1 + hd**2)", "p = p - 0.01 * tanh(hd) * g", "g = where(hd > 0.5, g, 0.5 * g)")


def group_of(setting: Setting, index: int) -> int:
    """Return the number of a parameter's group: all have one group, or each has its own."""
    return index if setting.viewed or setting.seed % 3 == 0 else 0


def with_axes(setting: Setting) -> Setting:
    """Return the setting without 0-dim parameters: with them, bounds differ by parameter."""
    return replace(setting, shapes=tuple(shape or (3,) for shape in setting.shapes))


def drawn(seed: str | int, text: str) -> str:
    """Return the text with reductions over several parameters, if the rule can have them."""
    lot = Random(f"wide {seed}")
    if lot.random() > 0.2:
        return text
    text = _with_scopes(lot, text)
    if _MATRICES.search(text) and lot.random() < 0.5:
        word, scope = lot.choice(WORDS), lot.choice(("group", "all"))
        scaled = f'    g = g / (1 + {word}(g, over="{scope}")**2)\n'
        return _FIRST.sub(lambda first: first[0] + scaled, text, count=1)
    if lot.random() < 0.6 and _FIRST.search(text):
        text = _with_state(lot, text)
    return text


def _with_scopes(lot: Random, text: str) -> str:
    """Return the text with `over=` in some of the calls that stand outside of branches."""
    lines = text.split("\n")
    for call in sorted(_calls(text), key=lambda c: (c.end_lineno, c.end_col_offset), reverse=True):
        if lot.random() < 0.5 and call.end_lineno and call.end_col_offset:
            row, end = call.end_lineno - 1, call.end_col_offset - 1
            scope = lot.choice(("group", "all"))
            lines[row] = f'{lines[row][:end]}, over="{scope}"{lines[row][end:]}'
    return "\n".join(lines)


def _calls(text: str) -> Iterator[ast.Call]:
    """Yield the calls of the rule's statements that can reduce over several parameters."""
    (rule,) = (
        f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and f.name == "Random"
    )
    for statement in rule.body:
        for node in ast.walk(statement) if isinstance(statement, ast.Assign) else ():
            match node:
                case ast.Call(func=ast.Name(id=name), args=[arg], keywords=[]) if name in WORDS:
                    if not _NO_TENSOR.search(ast.unparse(arg)):
                        yield node


def _with_state(lot: Random, text: str) -> str:
    """Return the text with a state of the group, which is fed and read at the rule's beginning."""

    def wide() -> str:
        operand = lot.choice(("g", "p", "g * p", "(g - 0.5 * p)"))
        return f'{lot.choice(WORDS)}({operand}, over="{lot.choice(("group", "all"))}")'

    assignments = re.sub(r"\{wide\}", lambda _: wide(), lot.choice(_STATES))
    if "\n    fa=" in text and lot.random() < 0.4:  # parameters of one group take the same arm
        scope = f'{lot.choice(WORDS)}(g, over="group")'
        arm = lot.choice((f"g = g / (1 + {scope}**2)", "hd = betas[1]"))
        assignments += f"\n    if fa:\n        {arm}"
    uses = "".join(f"    {lot.choice(_USES)}\n" for _ in range(lot.choice((1, 1, 2))))
    init = lot.choice(("0", "0.5", "1e-3"))
    text = _FIRST.sub(lambda first: f"{first[0]}    {assignments}\n{uses}", text, count=1)
    declared = f'    hd=state("key_hd", init={init}, shape="group"),'
    return _SIGNATURE.sub(lambda first: f"{first[0]}\n{declared}", text, count=1)
