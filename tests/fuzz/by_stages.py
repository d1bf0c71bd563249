"""Compare combinations of modifiers with changes by hand, in the order of the stages.

The other parts of the matrix compare lowerings with the composed rule. Here the composed rule is
compared with a step around an optimizer of torch that knows nothing of composition.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from composition import training
from composition.stages_by_hand import ARGUMENTS, STAGES, Step

from optgen import use_lowering
from optgen.compositions import compose, list_modifiers, modifier
from optgen.spec.composition.names import CompositionError
from optgen.spec.errors import SpecError

OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}}
RULES = (
    *("SGD", "AdamW", "Adadelta", "Adagrad", "Adam", "Adamax", "ASGD"),
    *("NAdam", "RAdam", "RMSprop", "Rprop"),
)
CHAINS = 200
STEPS, SPOILED = 7, 3
BOUND = 1e-11
"""Bound relative to the largest element: an update by hand is a difference, which loses digits."""
ROUNDED = 1e-6
"""Bound with weights in float32."""


def cases() -> Iterator[str]:
    """Yield the combinations: singles and chains with all rules, pairs with two of them."""
    singles = itertools.product(RULES, list_modifiers())
    yield from (f"{rule} {name}" for rule, name in singles if _is_by_hand(rule, name))
    yield from (f"{rule} {first} {second}" for rule in RULES[:2] for first, second in pairs())
    for number in range(CHAINS):
        lot = Random(f"chain by hand {number}")
        yield f"{lot.choice(RULES)} {' '.join(_chain(lot, lot.choice((3, 4, 4, 5, 6))))}"


def _is_by_hand(rule: str, name: str) -> bool:
    """Tell whether torch can do what a modifier does: amsgrad is an option of some classes."""
    return name != "amsgrad" or rule in ("Adam", "AdamW", "SGD")


def pairs() -> Iterator[tuple[str, str]]:
    """Yield the pairs of modifiers in the order of their stages; two of a stage in both orders."""
    stages = {name: number for number, stage in enumerate(STAGES) for name in stage.split("|")}
    for first, second in itertools.permutations(stages, 2):
        if stages[first] <= stages[second]:
            yield first, second


def _chain(lot: Random, count: int) -> list[str]:
    """Draw modifiers of different stages, in any order."""
    stages = lot.sample([stage for stage in STAGES if stage != "amsgrad"], count)
    return [lot.choice(stage.split("|")) for stage in stages]


def run(first: int = 0) -> int:
    """Compare the combinations from the first one, and print counts; return 1 if one differs."""
    counts = Counter[str]()
    for number, case in enumerate(itertools.islice(cases(), first, None), first):
        try:
            error = difference(case)
        except (CompositionError, SpecError):
            counts["refused"] += 1
            continue
        counts["compared"] += 1
        if not error < (ROUNDED if "master" in case else BOUND):
            counts["wrong"] += 1
            print(f"wrong: {case}: {error:.1e}", flush=True)
        if number % 100 == 99:
            print(f"{number + 1} combinations by hand: {dict(counts)}", flush=True)
    print(f"by hand: {sum(counts.values()) - counts['wrong']} combinations, {dict(counts)}")
    return int(counts["wrong"] > 0)


def difference(case: str) -> float:
    """Return the largest difference of parameters and averages in several steps."""
    rule, *names = case.split()
    chosen = [modifier(name)(**ARGUMENTS.get(name, {})) for name in names]
    cls: Any = compose(rule.lower(), *chosen)
    options = OPTIONS.get(rule, {})
    ours = cls(training.two_groups(training.parameters(training.MATRICES)), **options)
    amsgrad = {"amsgrad": True} if "amsgrad" in names else {}
    params = training.parameters(training.MATRICES)
    torchs = getattr(torch.optim, rule)(training.two_groups(params), **options, **amsgrad)
    by_hand, params_of_ours = Step(torchs, names), [param for param, _ in training.members(ours)]
    results = []
    for seed in range(STEPS):
        for each in (params_of_ours, by_hand.params):
            training.give_gradients(each, seed)
            if "skip_nonfinite" in names and seed == SPOILED and each[1].grad is not None:
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
