"""Compare combinations of modifiers with changes by hand, in the order of the stages.

A stage is the place in a step where a modifier acts, such as the decay of the parameter.

The other parts of `modifier_matrix` compare lowerings with the composed rule. This one compares the
composed rule with an optimizer of torch whose step is changed by hand.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from composition import training
from composition.stages_by_hand import ARGUMENTS, STAGES, ComposedByHand

from optgen import use_lowering
from optgen.compositions import compose, list_modifiers, modifier
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError

OPTIONS_BY_RULE: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}}
RULES = (
    *("SGD", "AdamW", "Adadelta", "Adagrad", "Adam", "Adamax", "ASGD"),
    *("NAdam", "RAdam", "RMSprop", "Rprop"),
)
NUM_CHAINS = 200
STEPS = 7
NAN_STEP = 3
"""The step whose gradients have a NaN, if the modifier `skip_nonfinite` is tested."""
MAX_DIFFERENCE = 1e-11
"""Relative to the largest element; an update by hand is a difference, which loses digits."""
MAX_DIFFERENCE_WITH_MASTER = 1e-6
"""The limit with the modifier `master`, which keeps weights in float32."""


def cases() -> Iterator[str]:
    """Yield combinations: each modifier with all rules, pairs with two rules, and random chains."""
    singles = itertools.product(RULES, list_modifiers())
    yield from (f"{rule} {name}" for rule, name in singles if _has_torch_form(rule, name))
    yield from (f"{rule} {first} {second}" for rule in RULES[:2] for first, second in pairs())
    for number in range(NUM_CHAINS):
        rng = Random(f"chain by hand {number}")
        yield f"{rng.choice(RULES)} {' '.join(_chain(rng, rng.choice((3, 4, 4, 5, 6))))}"


def _has_torch_form(rule: str, name: str) -> bool:
    """Tell whether torch can do what a modifier does; for amsgrad, some classes have an option."""
    return name != "amsgrad" or rule in ("Adam", "AdamW", "SGD")


def pairs() -> Iterator[tuple[str, str]]:
    """Yield pairs of modifiers in the order of stages; two of one stage come in both orders."""
    stages = {name: number for number, stage in enumerate(STAGES) for name in stage.split("|")}
    for first, second in itertools.permutations(stages, 2):
        if stages[first] <= stages[second]:
            yield first, second


def _chain(rng: Random, count: int) -> list[str]:
    """Draw modifiers of different stages, in any order."""
    stages = rng.sample([stage for stage in STAGES if stage != "amsgrad"], count)
    return [rng.choice(stage.split("|")) for stage in stages]


def run(first: int = 0) -> int:
    """Compare the combinations from number `first` on; return 1 if one differs."""
    counts = Counter[str]()
    for number, case in enumerate(itertools.islice(cases(), first, None), first):
        try:
            largest = difference(case)
        except (CompositionError, SpecError):
            counts["refused"] += 1
            continue
        counts["compared"] += 1
        if not largest < (MAX_DIFFERENCE_WITH_MASTER if "master" in case else MAX_DIFFERENCE):
            counts["wrong"] += 1
            print(f"wrong: {case}: {largest:.1e}", flush=True)
        if number % 100 == 99:
            print(f"{number + 1} combinations by hand: {dict(counts)}", flush=True)
    print(f"by hand: {sum(counts.values()) - counts['wrong']} combinations, {dict(counts)}")
    return int(counts["wrong"] > 0)


def difference(case: str) -> float:
    """Return the largest difference in several steps of a combination and of changes by hand.

    Parameters, averages, and gradients that should be 0 are compared."""
    rule, *names = case.split()
    chosen = [modifier(name)(**ARGUMENTS.get(name, {})) for name in names]
    cls: Any = compose(rule.lower(), *chosen)
    options = OPTIONS_BY_RULE.get(rule, {})
    ours = cls(training.two_groups(training.parameters(training.SHAPES_UP_TO_2D)), **options)
    amsgrad = {"amsgrad": True} if "amsgrad" in names else {}
    params = training.parameters(training.SHAPES_UP_TO_2D)
    torch_optimizer = getattr(torch.optim, rule)(training.two_groups(params), **options, **amsgrad)
    by_hand, params_of_ours = (
        ComposedByHand(torch_optimizer, names),
        [param for param, _ in training.params_and_lrs(ours)],
    )
    results = []
    for seed in range(STEPS):
        for each in (params_of_ours, by_hand.params):
            training.give_gradients(each, seed)
            if "skip_nonfinite" in names and seed == NAN_STEP and each[1].grad is not None:
                each[1].grad[0] = torch.nan
        with use_lowering("forloop"):
            ours.step()
        by_hand.step()
        results.append(training.difference(params_of_ours, by_hand.params))
    if "ema" in names:
        averages = [ours.state[param]["ema"] for param in params_of_ours]
        results.append(training.difference(averages, by_hand.averages))
    if "zero_grad" in names:
        results.append(sum(p.grad.abs().sum().item() for p in params_of_ours if p.grad is not None))
    return max(results)
