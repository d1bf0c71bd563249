"""Draw a random spec: its text, and settings to run it with."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from fuzz import compositions, eight_bits, extra_inputs, group_reductions, programs
from fuzz.branches import RuleGenerator
from fuzz.draft import Draft, State
from fuzz.expressions import ExpressionGenerator, Known
from fuzz.trial import Setting

SPEC_TEMPLATE = '''from optgen.spec import *

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
MATRIX_DTYPES = ("float32", "at_least_float32")
INITS = ("0", "0", "0", "0.5", "1.5", "-1", "1e-3")


def draw(
    seed: str | int, compose: Callable[[str | int, str], str] = compositions.add_modifiers
) -> tuple[str, list[Setting]]:
    """Draw a spec's text and the settings to run it with. A seed always draws the same.

    `compose`, a function of seed and text, may return the text with modifiers.
    """
    draft = _draft(seed)
    draft.states = _with_size_limits(draft, _states(draft), Random(f"{seed} limits"))
    body = _body(draft)
    text = _text(draft, body)
    if Random(f"{seed} tall").random() < 0.5:
        text = text.replace("(ndim(p) > 1)", "(tall(p))").replace("(ndim(p) == 1)", "(not tall(p))")
    settings = _settings(draft, text)
    with_input = extra_inputs.add_extra_input(seed, text)
    with_group_reductions = group_reductions.add_group_reductions(seed, with_input)
    text = with_group_reductions + programs.draw_programs(seed, text)
    text = eight_bits.add_8_bit_states(seed, compose(seed, text))
    if Random(f"{seed} compute dtype").random() < 0.15:
        text = text.replace("@optimizer(", '@optimizer(compute_dtype="param", ', 1)
    if "over=" in text:
        settings = [group_reductions.without_0_dim(setting) for setting in settings]
    return text, settings


def _draft(seed: str | int) -> Draft:
    """Draw the properties of a rule.

    Some properties have generators of their own, so that they change no other draw.
    """
    rng = Random(seed)
    draft = Draft(
        rng,
        has_odd_forms=rng.random() < 0.45,
        family=rng.choice(("elements", "elements", "numbers", "axes", "axes")),
        reads_step_count=rng.random() < 0.8,
        has_few_names=rng.random() < 0.4,
    )
    draft.requires_matrix = draft.family == "axes" and rng.random() < 0.5
    draft.has_random_numbers = (
        draft.family != "axes" and draft.reads_step_count and rng.random() < 0.25
    )
    if draft.family == "axes" and draft.reads_step_count:
        draft.has_random_numbers = Random(f"{seed} draws").random() < 0.25
    draft.may_round_beside_matrices = Random(f"{seed} rounds").random() < 0.3
    separate_rng = Random(f"{seed} squares")
    draft.has_matrices = draft.family == "axes" and separate_rng.random() < 0.4
    separate_rng = Random(f"{seed} thin")
    draft.has_thin_matrices = draft.has_matrices and separate_rng.random() < 0.6
    return draft


def _states(draft: Draft) -> list[State]:
    rng, states = draft.rng, []
    for symbol in ("m", "v", "w")[: rng.choice((0, 1, 1, 2, 2, 3))]:
        init = rng.choice((*INITS, '"p"', '"eps"'))
        dtypes = ("float32", "at_least_float32", "bfloat16", "float16")
        dtype_name = rng.choice(dtypes) if rng.random() < 0.1 else ""
        dtype_option = f', dtype="{dtype_name}"' if dtype_name else ""
        condition = rng.choice(("", "", "", "fa", "not fb", "c")) if symbol == "w" else ""
        if draft.family == "axes" and not draft.requires_matrix and rng.random() < 0.15:
            condition = "factored(p)"
        states.append(State(symbol, "tensors", f"init={init}{dtype_option}", condition))
    for symbol in ("s", "q")[: rng.choice((0, 0, 1, 2))]:
        init = rng.choice((*INITS, '"lr"', '"c"'))
        dtype_name = rng.choice(("", "", "", "float32", "float64", "torch"))
        dtype_option = f', dtype="{dtype_name}"' if dtype_name else ""
        states.append(State(symbol, "numbers", f'init={init}, shape="scalar"{dtype_option}'))
    if draft.family != "elements" and rng.random() < 0.4:
        for symbol in ("f", "f2")[: rng.choice((1, 1, 2))]:
            init = rng.choice((*INITS, '"lr"'))
            states.append(State(symbol, "reduced_numbers", f'init={init}, shape="scalar"'))
    if draft.family == "axes":
        for symbol, shape in (("r", "row"), ("k", "col")):
            if rng.random() < 0.5:
                conditions = ("", "", "", "fa", "not fb", "c")
                condition = rng.choice(conditions) if draft.requires_matrix else "factored(p)"
                options = f'init={rng.choice(INITS)}, shape="{shape}"'
                nature = "rows" if shape == "row" else "columns"
                states.append(State(symbol, nature, options, condition))
    for symbol, axis in (("L", "rows"), ("R", "cols")):
        if draft.has_matrices and rng.random() < 0.7:
            conditions = ("", "", "fa", "not fb")
            condition = rng.choice(conditions) if draft.requires_matrix else "factored(p)"
            options = f'init={rng.choice(INITS)}, shape=("{axis}", "{axis}")'
            options += _matrix_dtype(rng)
            states.append(
                State(symbol, "lefts" if axis == "rows" else "rights", options, condition)
            )
    states += _thin_states(draft) if draft.has_thin_matrices else []
    rng.shuffle(states)
    return states


def _with_size_limits(draft: Draft, states: list[State], rng: Random) -> list[State]:
    """Let some square states exist only up to a size, or only above it."""
    if not draft.requires_matrix:
        return states
    limits = ("2", "3", *["rank"] * draft.has_thin_matrices)
    sides = {"lefts": "rows(p)", "rights": "cols(p)"}
    return [
        replace(
            s, condition=f"{sides[s.nature]} {rng.choice(('<=', '<=', '>'))} {rng.choice(limits)}"
        )
        if s.nature in sides and not s.condition and rng.random() < 0.5
        else s
        for s in states
    ]


def _thin_states(draft: Draft) -> list[State]:
    """Draw states with an axis of length `rank`; `H0` exists for all parameters with rows."""
    rng, states = draft.rng, []
    shapes = {
        "H0": ("thin_rows", "rows", "rank"),
        "J0": ("thin_cols", "cols", "rank"),
        "D0": ("wide_rows", "rank", "rows"),
        "I0": ("wide_cols", "rank", "cols"),
        "Y0": ("ranks", "rank", "rank"),
    }
    for symbol, (nature, first_axis, second_axis) in shapes.items():
        if symbol != "H0" and rng.random() < 0.5:
            continue
        conditions = ("", "", "fa", "not fb") if symbol != "H0" else ("",)
        condition = rng.choice(conditions) if draft.requires_matrix else "factored(p)"
        options = f'init={rng.choice(INITS)}, shape=("{first_axis}", "{second_axis}")'
        options += _matrix_dtype(rng)
        states.append(State(symbol, nature, options, condition))
    return states


def _matrix_dtype(rng: Random) -> str:
    return f', dtype="{rng.choice(MATRIX_DTYPES)}"' if rng.random() < 0.1 else ""


def _body(draft: Draft) -> list[str]:
    rng = draft.rng
    known = Known(
        numbers=["lr", "c", *["t"] * draft.reads_step_count, *["rank"] * draft.has_thin_matrices],
        tensors=["p", "g", "g"],
    )
    if not draft.has_few_names:
        known.numbers += ["eps", "beta1", "beta2", "betas[1]"]
    for state in draft.states:
        if not state.condition:
            names = getattr(known, state.nature)
            names += [state.symbol] * 2
    poly = "poly" if _may_have_matrices(draft) and rng.random() < 0.35 else ""
    writer = RuleGenerator(
        ExpressionGenerator(
            rng,
            known,
            has_odd_forms=draft.has_odd_forms,
            has_reductions=draft.family != "elements",
            has_axes=draft.requires_matrix,
            has_matrices=draft.has_matrices,
            has_thin_matrices=draft.has_thin_matrices,
            reads_step_count=draft.reads_step_count,
            conditions=_conditions(draft),
            max_depth=1 if draft.has_few_names else 9,
            has_random_numbers=draft.has_random_numbers,
            has_roundings=not (draft.has_matrices or poly) or draft.may_round_beside_matrices,
        ),
        [(s.symbol, s.nature, s.condition) for s in draft.states],
        poly,
    )
    statement_counts = (3, 4, 5, 6, 7, 8) if draft.has_few_names else (1, 2, 3, 4, 5, 7)
    may_have_many = draft.has_odd_forms or draft.has_few_names
    return writer.rule(rng.choice(statement_counts if may_have_many else (1, 1, 2, 3, 4)))


def _conditions(draft: Draft) -> list[str]:
    """Return the conditions on names of the signature."""
    conditions = [
        "fa", "not fa", "fb", "not fb", "c", "opt is None", "opt is not None", "pair[0] is None",
        'mode == "b"', 'mode != "a"', "mode is None", "numel(p) > 5", "ndim(p) > 1",
        "ndim(p) == 1", "fix", "lr > 0.05", "opt", "c > 0",
    ]  # fmt: skip
    conditions += ["factored(p)"] * (not draft.requires_matrix)
    if draft.reads_step_count:
        conditions += ["t > 1", "t <= 2", "t == 2", "t % 2 == 0", "t - 1 > 0.5"]
    for state in draft.states:
        if not state.condition:
            conditions.append(f"fresh({state.symbol})")
            if state.nature == "numbers":
                conditions.append(f"{state.symbol} > 0.7")
    return conditions


def _may_have_matrices(draft: Draft) -> bool:
    """Tell whether the rule may have matrix ops: only without states that hold reduced numbers."""
    return draft.family == "axes" and all(
        state.nature != "reduced_numbers" for state in draft.states
    )


def _text(draft: Draft, body: list[str]) -> str:
    lines = ["    beta1, beta2 = betas", *body]
    if draft.requires_matrix:
        condition = draft.rng.choice(("factored(p)", "ndim(p) >= 2", "ndim(p) > 1"))
        lines.insert(0, f'    require({condition}, "{{shape}}")')
    text = "\n".join(lines)
    text = _with_reads_of_states(text, draft.states)
    text = _underscore_unread(text, [s.symbol for s in draft.states])
    read_names = set(re.findall(r"[A-Za-z_]\w*", text))
    for state in draft.states:
        read_names |= set(re.findall(r'"(\w+)"', state.options)) | set(
            re.findall(r"\w+", state.condition)
        )
    hypers = [f"    {n}={d}," for n, d in Draft.DECLARATIONS.items() if n in read_names]
    inputs = f"    p, g, {'t, ' * draft.reads_step_count}/,"
    signature = [inputs, *map(_declaration, draft.states), *["    *,"] * bool(hypers), *hypers]
    return SPEC_TEMPLATE.replace("{signature}", "\n".join(signature)).replace("{body}", text)


def _declaration(state: State) -> str:
    when = f', when="{state.condition.removesuffix("(p)")}"' if state.condition else ""
    return f'    {state.symbol}=state("key_{state.symbol}", {state.options}{when}),'


def _with_reads_of_states(text: str, states: list[State]) -> str:
    """Return the text with a read of each state that is only written; the language demands it."""
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


def _underscore_unread(text: str, exempt: list[str]) -> str:
    """Put an underscore before names that the rule never reads; the language demands it."""
    read, written = _names(text)
    for name in written - read - {"p", *exempt}:
        text = re.sub(rf"(?<!\")\b{name}\b", f"_{name}", text)
    return text


SHAPES: tuple[tuple[int, ...], ...] = (
    (5,), (2, 3), (), (3, 1), (1, 4), (2, 2, 3), (1,), (2, 3), (1, 1), (2, 1, 2), (17,),
)  # fmt: skip
LARGE_SHAPES = ((90, 70), (3, 5000), (5000, 3), (2, 70, 60))
"""Shapes of matrices that kernels split: by rows, by columns, or both."""


def _settings(draft: Draft, text: str) -> list[Setting]:
    rng = draft.rng
    signature = text.partition('):\n    """Drawn')[0]
    choices_by_hyper = {
        name: values
        for name, values in draft.HYPER_VALUES.items()
        if re.search(rf"^    {name}=", signature, re.M)
    }
    choices_by_hyper["maximize"] = (False, True)
    shapes = [s for s in SHAPES if len(s) > 1 or not draft.requires_matrix]
    results = []
    narrow_dtype = rng.choice(("float32", "bfloat16", "", ""))
    for dtype in filter(None, ("float64", "float64", "float64", narrow_dtype)):
        is_first = not results
        hypers = (
            {}
            if is_first
            else {name: rng.choice(values) for name, values in choices_by_hyper.items()}
        )
        if not is_first and "mode" in choices_by_hyper and hypers["mode"] == "a":
            hypers.pop("mode")
        is_large = draft.family != "elements" and rng.random() < 0.08 and not draft.has_matrices
        chosen_shapes = (rng.choice(LARGE_SHAPES),) if is_large else tuple(rng.sample(shapes, 2))
        seed = rng.randrange(1000)
        results.append(Setting(hypers, chosen_shapes, dtype, seed, viewed=seed % 4 == 0))
    return results
