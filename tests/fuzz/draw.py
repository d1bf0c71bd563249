"""Draw a random spec: its text, and settings to run it with."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fuzz import compositions, eight_bits, extra_inputs, programs, wide
from fuzz.branches import Rules
from fuzz.expressions import Expressions, Known
from fuzz.trial import Setting

FILE = '''from optgen.spec import *

SCALE = 0.75


def blend(x, y):
    """Half of one and a part of the other."""
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half


def turned(x, y):
    x, y = y, x
    return 0.5 * x - SCALE * y


@optimizer(paper="https://example.org")
def Random(
{signature}
):
    """Drawn by lot."""
{body}
'''
INITS = ("0", "0", "0", "0.5", "1.5", "-1", "1e-3")


@dataclass
class State:
    """A state as the signature declares it."""

    symbol: str
    nature: str  # the list of `Known` that the symbol belongs to
    options: str = ""
    holds: str = ""  # the condition under which the state exists


@dataclass
class Draft:
    """The signature, drawn before the rule, and the names that it offers."""

    lot: Random
    nasty: bool  # with many odd forms and constants
    family: str  # elements: no reductions; numbers: with reductions; axes: rows and columns too
    counts: bool  # whether the rule reads the step count
    dense: bool  # many short statements with few names
    states: list[State] = field(default_factory=list)
    required: bool = False  # whether the rule requires a matrix
    draws: bool = False  # the rule draws random numbers
    squares: bool = False  # the rule works on whole matrices
    thin: bool = False  # some of its matrices are thin
    rounds: bool = False  # the rule rounds, even if it has matrix ops

    HYPERS = {
        "lr": "hyper(0.1, ge=0)",
        "c": "hyper(0.5)",
        "eps": "hyper(0.25, gt=0)",
        "betas": "hyper((0.5, 0.75), ge=0, lt=1)",
        "opt": "hyper(None, optional=True)",
        "pair": "hyper((None, 0.5), optional=True)",
        "fa": "flag(False)",
        "fb": "flag(True)",
        "fix": "fixed(True)",
        "mode": 'choice("a", "b", None)',
        "poly": "hyper((1.5, -0.5, 0.0))",
        "rank": "hyper(2, ge=1, whole=True)",
    }
    SETTINGS: Mapping[str, tuple[Any, ...]] = field(
        default_factory=lambda: {
            "lr": (0.1, 0.01, 0.5),
            "c": (0.5, -0.5, 0.0, 2.0),
            "eps": (0.25, 1.0),
            "betas": ((0.5, 0.75), (0.0, 0.25), (0.9, 0.5)),
            "opt": (None, 0.5, 0.0),
            "pair": ((None, 0.5), (1.5, 0.25)),
            "fa": (False, True),
            "fb": (True, False),
            "mode": ("a", "b", None),
            "rank": (1, 2, 3, 100),
        }
    )


def draw(
    seed: str | int, compose: Callable[[str | int, str], str] = compositions.drawn
) -> tuple[str, list[Setting]]:
    """Draw a spec's text and the settings to run it with; a seed always gives the same ones.

    `compose` may return the text with modifiers.
    """
    lot = Random(seed)
    draft = Draft(
        lot,
        nasty=lot.random() < 0.45,
        family=lot.choice(("elements", "elements", "numbers", "axes", "axes")),
        counts=lot.random() < 0.8,
        dense=lot.random() < 0.4,
    )
    draft.required = draft.family == "axes" and lot.random() < 0.5
    draft.draws = draft.family != "axes" and draft.counts and lot.random() < 0.25
    if draft.family == "axes" and draft.counts:
        draft.draws = Random(f"{seed} draws").random() < 0.25
    draft.rounds = Random(f"{seed} rounds").random() < 0.3
    separate_lot = Random(f"{seed} squares")  # so that all other rules stay as they are
    draft.squares = draft.family == "axes" and separate_lot.random() < 0.4
    separate_lot = Random(f"{seed} thin")
    draft.thin = draft.squares and separate_lot.random() < 0.6
    draft.states = _states(draft)
    body = _body(draft)
    text = _text(draft, body)
    if Random(f"{seed} tall").random() < 0.5:
        text = text.replace("(ndim(p) > 1)", "(tall(p))").replace("(ndim(p) == 1)", "(not tall(p))")
    settings = _settings(draft, text)
    text = wide.drawn(seed, extra_inputs.drawn(seed, text)) + programs.drawn(seed, text)
    text = eight_bits.drawn(seed, compose(seed, text))
    if "over=" in text:
        settings = [wide.with_axes(setting) for setting in settings]
    return text, settings


def _states(draft: Draft) -> list[State]:
    lot, states = draft.lot, []
    for symbol in ("m", "v", "w")[: lot.choice((0, 1, 1, 2, 2, 3))]:
        init = lot.choice((*INITS, '"p"', '"eps"'))
        own = lot.choice(("float32", "bfloat16", "float16")) if lot.random() < 0.08 else ""
        dtype = f', dtype="{own}"' if own else ""
        holds = lot.choice(("", "", "", "fa", "not fb", "c")) if symbol == "w" else ""
        if draft.family == "axes" and not draft.required and lot.random() < 0.15:
            holds = "factored(p)"
        states.append(State(symbol, "tensors", f"init={init}{dtype}", holds))
    for symbol in ("s", "q")[: lot.choice((0, 0, 1, 2))]:
        init = lot.choice((*INITS, '"lr"', '"c"'))
        own = lot.choice(("", "", "", "float32", "float64", "torch"))
        dtype = f', dtype="{own}"' if own else ""
        states.append(State(symbol, "numbers", f'init={init}, shape="scalar"{dtype}'))
    if draft.family != "elements" and lot.random() < 0.4:
        for symbol in ("f", "f2")[: lot.choice((1, 1, 2))]:
            init = lot.choice((*INITS, '"lr"'))
            states.append(State(symbol, "lates", f'init={init}, shape="scalar"'))
    if draft.family == "axes":
        for symbol, shape in (("r", "row"), ("k", "col")):
            if lot.random() < 0.5:
                flags = ("", "", "", "fa", "not fb", "c")
                holds = lot.choice(flags) if draft.required else "factored(p)"
                options = f'init={lot.choice(INITS)}, shape="{shape}"'
                nature = "rows" if shape == "row" else "columns"
                states.append(State(symbol, nature, options, holds))
    for symbol, size in (("L", "rows"), ("R", "cols")):
        if draft.squares and lot.random() < 0.7:
            flags = ("", "", "fa", "not fb")
            holds = lot.choice(flags) if draft.required else "factored(p)"
            options = f'init={lot.choice(INITS)}, shape=("{size}", "{size}")'
            options += ', dtype="float32"' if lot.random() < 0.1 else ""
            states.append(State(symbol, "lefts" if size == "rows" else "rights", options, holds))
    states += _thin_states(draft) if draft.thin else []
    lot.shuffle(states)
    return states


def _thin_states(draft: Draft) -> list[State]:
    """Draw states with an axis of the rank; one of them always exists where there are rows."""
    lot, states = draft.lot, []
    shapes = {
        "H0": ("thin_rows", "rows", "rank"),
        "J0": ("thin_cols", "cols", "rank"),
        "D0": ("wide_rows", "rank", "rows"),
        "I0": ("wide_cols", "rank", "cols"),
        "Y0": ("ranks", "rank", "rank"),
    }
    for symbol, (nature, first_axis, second_axis) in shapes.items():
        if symbol != "H0" and lot.random() < 0.5:
            continue
        flags = ("", "", "fa", "not fb") if symbol != "H0" else ("",)
        holds = lot.choice(flags) if draft.required else "factored(p)"
        options = f'init={lot.choice(INITS)}, shape=("{first_axis}", "{second_axis}")'
        options += ', dtype="float32"' if lot.random() < 0.1 else ""
        states.append(State(symbol, nature, options, holds))
    return states


def _body(draft: Draft) -> list[str]:
    lot = draft.lot
    known = Known(
        numbers=["lr", "c", *["t"] * draft.counts, *["rank"] * draft.thin],
        tensors=["p", "g", "g"],
    )
    if not draft.dense:
        known.numbers += ["eps", "beta1", "beta2", "betas[1]"]
    for state in draft.states:
        if not state.holds:
            names = getattr(known, state.nature)
            names += [state.symbol] * 2
    conditions = [
        "fa", "not fa", "fb", "not fb", "c", "opt is None", "opt is not None", "pair[0] is None",
        'mode == "b"', 'mode != "a"', "mode is None", "numel(p) > 5", "ndim(p) > 1",
        "ndim(p) == 1", "fix", "lr > 0.05", "opt", "c > 0",
    ]  # fmt: skip
    conditions += ["factored(p)"] * (not draft.required)
    conditions += ["t > 1", "t <= 2", "t == 2", "t % 2 == 0", "t - 1 > 0.5"] * draft.counts
    conditions += [
        asked
        for s in draft.states
        if not s.holds
        for asked in ([f"fresh({s.symbol})"] + [f"{s.symbol} > 0.7"] * (s.nature == "numbers"))
    ]
    poly = "poly" if _may_have_matrices(draft) and lot.random() < 0.35 else ""
    writer = Rules(
        Expressions(
            lot,
            known,
            nasty=draft.nasty,
            reduces=draft.family != "elements",
            axes=draft.required,
            squares=draft.squares,
            thin=draft.thin,
            counts=draft.counts,
            conditions=conditions,
            most=1 if draft.dense else 9,
            draws=draft.draws,
            rounds=not (draft.squares or poly) or draft.rounds,
        ),
        [(s.symbol, s.nature, s.holds) for s in draft.states],
        poly,
    )
    many = (3, 4, 5, 6, 7, 8) if draft.dense else (1, 2, 3, 4, 5, 7)
    return writer.rule(lot.choice(many if draft.nasty or draft.dense else (1, 1, 2, 3, 4)))


def _may_have_matrices(draft: Draft) -> bool:
    """Tell whether the rule may have matrix ops: no rule has them and device scalars."""
    return draft.family == "axes" and all(state.nature != "lates" for state in draft.states)


def _text(draft: Draft, body: list[str]) -> str:
    lines = ["    beta1, beta2 = betas", *body]
    if draft.required:
        condition = draft.lot.choice(("factored(p)", "ndim(p) >= 2", "ndim(p) > 1"))
        lines.insert(0, f'    require({condition}, "{{shape}}")')
    text = "\n".join(lines)
    text = _with_states_read(text, draft.states)
    text = _without_unread(text, [s.symbol for s in draft.states])
    read = set(re.findall(r"[A-Za-z_]\w*", text))
    for state in draft.states:
        read |= set(re.findall(r'"(\w+)"', state.options)) | set(re.findall(r"\w+", state.holds))
    hypers = [f"    {n}={d}," for n, d in Draft.HYPERS.items() if n in read]
    inputs = f"    p, g, {'t, ' * draft.counts}/,"
    signature = [inputs, *map(_declared, draft.states), *["    *,"] * bool(hypers), *hypers]
    return FILE.replace("{signature}", "\n".join(signature)).replace("{body}", text)


def _declared(state: State) -> str:
    when = f', when="{state.holds.removesuffix("(p)")}"' if state.holds else ""
    return f'    {state.symbol}=state("key_{state.symbol}", {state.options}{when}),'


def _with_states_read(text: str, states: list[State]) -> str:
    """Let a statement read each state that is written only; the language demands one."""
    read, written = _names(text)
    for name in (state.symbol for state in states if state.symbol in written - read):
        text = re.sub(
            rf"^( *){name} = (.*)$", rf"\1{name} = 0.5 * {name} + (\2)", text, flags=re.MULTILINE
        )
    return text


def _names(text: str) -> tuple[set[str], set[str]]:
    """Return the names that the lines of a rule read, and those that they write."""
    names = [n for n in ast.walk(ast.parse("def f():\n" + text)) if isinstance(n, ast.Name)]
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    return read, {n.id for n in names if isinstance(n.ctx, ast.Store)}


def _without_unread(text: str, exempt: list[str]) -> str:
    """Put an underscore before names that the rule never reads; the language demands one."""
    read, written = _names(text)
    for name in written - read - {"p", *exempt}:
        text = re.sub(rf"(?<!\")\b{name}\b", f"_{name}", text)
    return text


SHAPES: tuple[tuple[int, ...], ...] = (
    (5,), (2, 3), (), (3, 1), (1, 4), (2, 2, 3), (1,), (2, 3), (1, 1), (2, 1, 2), (17,),
)  # fmt: skip
LARGE = ((90, 70), (3, 5000), (5000, 3), (2, 70, 60))
"""Shapes of matrices that kernels split: by rows, by columns, or both."""


def _settings(draft: Draft, text: str) -> list[Setting]:
    lot = draft.lot
    signature = text.partition('):\n    """Drawn')[0]
    offered = {
        name: values
        for name, values in draft.SETTINGS.items()
        if re.search(rf"^    {name}=", signature, re.M)
    }
    offered["maximize"] = (False, True)
    shapes = [s for s in SHAPES if len(s) > 1 or not draft.required]
    results = []
    low = lot.choice(("float32", "bfloat16", "", ""))
    for dtype in filter(None, ("float64", "float64", "float64", low)):
        first = not results
        hypers = {} if first else {name: lot.choice(values) for name, values in offered.items()}
        if not first and "mode" in offered and hypers["mode"] == "a":
            hypers.pop("mode")
        large = draft.family != "elements" and lot.random() < 0.08 and not draft.squares
        chosen = (lot.choice(LARGE),) if large else tuple(lot.sample(shapes, 2))
        seed = lot.randrange(1000)
        results.append(Setting(hypers, chosen, dtype, seed, viewed=seed % 4 == 0))
    return results
