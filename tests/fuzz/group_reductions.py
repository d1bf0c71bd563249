"""Add reductions over several parameters, and states of groups, to some drawn rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from optgen.ir.algorithm import Algorithm

if TYPE_CHECKING:
    from fuzz.trial import Setting

WORDS = ("sum", "mean", "norm", "rms", "max_abs")
_FIRST_STATEMENT = re.compile(r"^    _?beta1, _?beta2 = betas\n", re.M)
_SIGNATURE = re.compile(r"^    p, g, .*/,$", re.M)
_NOT_ELEMENTWISE = re.compile(
    r"row_|col_|diag|trace|eigen|\b[rk]\b|\br[12]\b|\bc[12]\b|@|transpose"
)
_MATRICES = re.compile(r"orthogonalize|@ |transpose|\", \"(rows|cols|rank)\"\)")
_STATE_ASSIGNMENTS = (
    "hd = 0.5 * hd + 0.25 * {reduction}",
    "hd = hd + 1\n    hd = minimum(hd, 3 + {reduction})",
    "hd = where({reduction} > 0.5, 0.5 * hd, tanh({reduction}))",
    "hd = maximum(hd, {reduction}) - hd / (1 + {reduction}**2)",
    "hd = lerp(hd, {reduction} - {reduction}, 0.25)",
    "hd = betas[0] * hd + {reduction} / (1 + {reduction}**2)",
    "hd = where({reduction} != 0, 0.5 * hd + 0.25, hd)",
)
_USES_OF_STATE = (
    "g = g / (1 + hd**2)",
    "p = p - 0.01 * tanh(hd) * g",
    "g = where(hd > 0.5, g, 0.5 * g)",
)


def group_index(setting: Setting, index: int) -> int:
    """Return a parameter's group index: in some settings each has a group, else all share one."""
    if are_pieces(setting):
        return 0
    return index if setting.viewed or setting.seed % 3 == 0 else 0


def are_pieces(setting: Setting) -> bool:
    """Tell whether the parameters are to be pieces of one parameter, if the rule takes pieces."""
    return setting.viewed and setting.seed % 8 == 0


def options_of_group(algorithm: Algorithm, setting: Setting, index: int) -> dict[str, float]:
    """Return a parameter's options that differ from the constructor's arguments.

    Every other group has the rate 0, if the rule allows this beside another rate.
    """
    rate = algorithm.hyper("lr")
    may_be_0 = rate is not None and rate.groups == "equal or 0"
    return {"lr": 0.0} if may_be_0 and group_index(setting, index) % 2 else {}


def without_0_dim(setting: Setting) -> Setting:
    """Return the setting with vectors in place of 0-dim parameters, whose bounds are different."""
    return replace(setting, shapes=tuple(shape or (3,) for shape in setting.shapes))


def add_group_reductions(seed: str | int, text: str) -> str:
    """Return the text, for some seeds with reductions over several parameters."""
    rng = Random(f"wide {seed}")
    if rng.random() > 0.2:
        return text
    text = _with_scopes(rng, text)
    if _MATRICES.search(text) and rng.random() < 0.5:
        word, scope = rng.choice(WORDS), rng.choice(("group", "all"))
        division = f'    g = g / (1 + {word}(g, over="{scope}")**2)\n'
        return _FIRST_STATEMENT.sub(lambda first: first[0] + division, text, count=1)
    if rng.random() < 0.6 and _FIRST_STATEMENT.search(text):
        text = _with_state(rng, text)
    return text


def _with_scopes(rng: Random, text: str) -> str:
    """Return the text with `over=` in some of the reductions outside of branches."""
    lines = text.split("\n")
    for call in sorted(
        _reductions(text), key=lambda c: (c.end_lineno, c.end_col_offset), reverse=True
    ):
        if rng.random() < 0.5 and call.end_lineno and call.end_col_offset:
            line, end = call.end_lineno - 1, call.end_col_offset - 1
            scope = rng.choice(("group", "all"))
            lines[line] = f'{lines[line][:end]}, over="{scope}"{lines[line][end:]}'
    return "\n".join(lines)


def _reductions(text: str) -> Iterator[ast.Call]:
    """Yield the calls of the rule's statements that can reduce over several parameters."""
    (rule,) = (
        f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and f.name == "Random"
    )
    for statement in rule.body:
        for node in ast.walk(statement) if isinstance(statement, ast.Assign) else ():
            match node:
                case ast.Call(func=ast.Name(id=name), args=[arg], keywords=[]) if name in WORDS:
                    if not _NOT_ELEMENTWISE.search(ast.unparse(arg)):
                        yield node


def _with_state(rng: Random, text: str) -> str:
    """Return the text with a state of the group or of all groups.

    The rule's first statements write and read it.
    """
    owner = rng.choice(("group", "all"))
    scopes = ("group", "all") if owner == "group" else ("all",)

    number = "lr" if "\n    lr=" in text else "betas[0]"

    def reduction_over_parameters() -> str:
        if rng.random() < 0.15:
            return f'max_abs({rng.choice((number, "betas[1]"))}, over="{rng.choice(scopes)}")'
        operand = rng.choice(("g", "p", "g * p", "(g - 0.5 * p)", f"where({number} > 0, g, 0)"))
        return f'{rng.choice(WORDS)}({operand}, over="{rng.choice(scopes)}")'

    assignments = re.sub(
        r"\{reduction\}", lambda _: reduction_over_parameters(), rng.choice(_STATE_ASSIGNMENTS)
    )
    if "\n    fa=" in text and rng.random() < 0.4:  # parameters of one group take the same arm
        reduction = f'{rng.choice(WORDS)}(g, over="group")'
        arm = rng.choice((f"g = g / (1 + {reduction}**2)", "hd = betas[1]"))
        assignments += f"\n    if fa:\n        {arm}"
    uses = "".join(f"    {rng.choice(_USES_OF_STATE)}\n" for _ in range(rng.choice((1, 1, 2))))
    init = rng.choice(("0", "0.5", "1e-3"))
    text = _FIRST_STATEMENT.sub(lambda first: f"{first[0]}    {assignments}\n{uses}", text, count=1)
    declared = f'    hd=state("key_hd", init={init}, shape="{owner}"),'
    text = _SIGNATURE.sub(lambda first: f"{first[0]}\n{declared}", text, count=1)
    return text if owner == "group" else _with_equal_values(rng, text)


def _with_equal_values(rng: Random, text: str) -> str:
    """Return the text with hyperparameters that have one value for all groups."""
    rate_values = rng.choice(("any", "equal", "equal or 0"))
    text = re.sub(r"^(    lr=hyper\(.*)\),$", rf'\1, groups="{rate_values}"),', text, flags=re.M)
    equal = r'\1, groups="equal"),'
    return re.sub(r"^(    (?:betas=hyper|fa=flag)\(.*)\),$", equal, text, flags=re.M)
