"""Name all combinations of modifiers that a run compares, and compose one by its name.

The matrix has three parts: every modifier with every rule, all pairs of modifiers with some rules,
and random chains of modifiers with drawn rules. `compare_stages_by_hand` is a further part.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from spec_files import spec_file

from fuzz import compare_stages_by_hand
from fuzz.compositions import REFUSE_3D, draw_modifier
from fuzz.draw import draw
from fuzz.run import Run
from fuzz.trial import Setting
from optgen.compositions import composed_spec, list_modifiers, modifier
from optgen.jit import named_spec
from optgen.spec import Spec
from optgen.spec.composition.check_parts import CompositionError, modifier_part
from optgen.spec.composition.find_parts import STAGES, Part
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

TORCH_RULES = (
    *("adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "asgd", "muon", "nadam"),
    *("radam", "rmsprop", "row_wise_adagrad", "rprop", "sgd", "sparse_adam"),
)
"""Rules of torch.optim, and torchrec's RowWiseAdagrad."""
OTHER_RULES = ("came", "lamb", "madgrad", "normuon", "novograd", "prodigy", "shampoo", "sophia")
"""Published rules that torch does not have."""
RULES_OF_PAIRS = ("adamw", "sgd", "muon")
"""The rules that pairs of modifiers are composed with."""

_MATRIX_RULES = ("came", "muon", "normuon", "row_wise_adagrad")
"""Rules that take matrices only."""
_OPTIONS_BY_RULE: dict[str, tuple[dict[str, Any], ...]] = {
    "adadelta": ({}, {"weight_decay": 0.1}),
    "adam": ({}, {"amsgrad": True}, {"weight_decay": 0.1}),
    "adamw": ({}, {"amsgrad": True}, {"weight_decay": 0.1}),
    "muon": ({}, {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw"}),
    "nadam": ({}, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "rmsprop": ({}, {"momentum": 0.9}, {"centered": True}),
    "sgd": ({"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}),
}
"""Options of rules that change which statements run."""

_SHAPES: tuple[tuple[int, ...], ...] = ((5,), (1,), (), (2, 3), (4, 2), (1, 3), (3, 1), (2, 2, 3))
NUM_CHAINS = 400


def cases(part: str) -> list[str]:
    """Return the names of the combinations of a part of the matrix."""
    return list(PARTS[part]())


def _rules_with_modifiers() -> Iterator[str]:
    yield from (
        f"{rule} {name}" for rule in (*TORCH_RULES, *OTHER_RULES) for name in list_modifiers()
    )


def _pairs() -> Iterator[str]:
    """Yield pairs of modifiers in the order of their stages; two of one stage in both orders."""
    stages = {name: list(STAGES).index(_part(name).stage) for name in list_modifiers()}
    for rule in RULES_OF_PAIRS:
        for first, second in itertools.permutations(stages, 2):
            if stages[first] <= stages[second]:
                yield f"{rule} {first} {second}"


def _chains() -> Iterator[str]:
    for number in range(NUM_CHAINS):
        rng = Random(f"chain {number}")
        yield f"#{number} {' '.join(_compatible_modifiers(rng, rng.choice((3, 3, 4, 5, 6))))}"


PARTS = {"rules": _rules_with_modifiers, "pairs": _pairs, "chains": _chains}
"""The parts of the matrix."""


def run_matrix(options: argparse.Namespace) -> int:
    """Compare the combinations of some parts; return 1 if there are findings."""
    exit_code = 0
    for part in options.matrix or (*PARTS, "stages"):
        if part == "stages":
            exit_code |= compare_stages_by_hand.run(options.first)
            continue
        names = cases(part)[options.first :]
        run = Run(options, _draw, names)
        print(f"{part}: {len(names)} combinations", flush=True)
        exit_code |= run.run()
    return exit_code


def _draw(case: str) -> tuple[str, list[Setting]]:
    """Return a combination; error messages lack names, so that equal refusals add up."""
    try:
        return compose_case(case)
    except (CompositionError, SpecError) as error:
        message = error.message if isinstance(error, SpecError) else str(error)
        raise CompositionError(_without_names(message)) from None


def compose_case(case: str) -> tuple[str, list[Setting]]:
    """Return the text of a combination, and the settings to run it with.

    Raises:
        CompositionError, SpecError: optgen refuses the combination.
    """
    rule, *names = case.split()
    rng = Random(case)
    if rule.startswith("#"):
        seed = next(
            seed for seed in (f"{case} rule {number}" for number in range(99)) if _is_valid(seed)
        )
        text, settings = draw(seed, lambda _, text: _composed_text(rng, random_spec(text), names))
    else:
        text, settings = _composed_text(rng, _spec(rule), names), _settings(rng, rule)
    if not {*names}.isdisjoint(REFUSE_3D):
        settings = [_with_at_most_2_axes(setting) for setting in settings]
    if 'over="' in text or "over='" in text:
        settings = [replace(s, shapes=tuple(x or (3,) for x in s.shapes)) for s in settings]
    return text, settings


def _without_names(message: str) -> str:
    message = re.sub(r"`[^`]*`|'[^']*'", "…", message)
    names = "|".join([*list_modifiers(), "Random", *map(_class_name, (*TORCH_RULES, *OTHER_RULES))])
    return re.sub(rf"\b({names})\b", "…", message)


def _composed_text(rng: Random, spec: Spec, names: Sequence[str]) -> str:
    return composed_spec(spec, tuple(draw_modifier(rng, name) for name in names), "Random").source


def _is_valid(seed: str) -> bool:
    """Tell whether optgen accepts a drawn rule without modifiers."""
    try:
        read_spec(random_spec(draw(seed, lambda _, text: text)[0]))
    except SpecError:
        return False
    return True


def random_spec(text: str) -> Spec:
    """Return the spec of a text that was drawn or composed."""
    return Spec("Random", text, "random.py", 1)


@functools.cache
def _spec(rule: str) -> Spec:
    return named_spec(spec_file(rule))


def _class_name(rule: str) -> str:
    return _spec(rule).name


def _settings(rng: Random, rule: str) -> list[Setting]:
    """Return two settings. The first one has float64: see `trial._iterate_exactly`."""
    shapes = [s for s in _SHAPES if len(s) == 2 or rule not in _MATRIX_RULES]
    results = []
    for dtype in ("float64", rng.choice(("float64", "float32", "bfloat16"))):
        options = rng.choice(_OPTIONS_BY_RULE.get(rule, ({},)))
        hypers = {**options, "lr": rng.choice((0.1, 0.01)), "maximize": rng.random() < 0.3}
        seed = rng.randrange(1000)
        chosen_shapes = tuple(rng.sample(shapes, 2))
        results.append(Setting(hypers, chosen_shapes, dtype, seed, viewed=seed % 6 == 0))
    return results


def _with_at_most_2_axes(setting: Setting) -> Setting:
    """Return the setting with parameters of three axes flattened to matrices."""
    shapes = ((s[0], s[1] * s[2]) if len(s) > 2 else s for s in setting.shapes)
    return replace(setting, shapes=tuple(shapes))


@functools.cache
def _part(name: str) -> Part:
    return modifier_part(modifier(name).spec)


def _compatible_modifiers(rng: Random, count: int) -> list[str]:
    """Draw modifiers that can all be composed with one another.

    At most one stores the parameter, at most one has programs, and names of hyperparameters
    differ. None needs a second moment, which drawn rules lack.
    """
    chosen: list[str] = []
    used_names = {"moment"}
    for name in rng.sample(list_modifiers(), len(list_modifiers())):
        part = _part(name)
        needs = {argument.arg for argument, _ in part.hypers}
        needs |= {part.changed_value} & {"store", "moment"}
        needs |= {"programs"} if part.programs else set()
        if used_names.isdisjoint(needs) and len(chosen) < count:
            used_names |= needs
            chosen.append(name)
    return chosen
