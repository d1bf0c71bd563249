"""Draw rules, build and run them, and keep the findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fuzz import built, trial
from fuzz.draw import draw
from fuzz.finding import Finding, of_exception
from fuzz.limit import limited
from fuzz.trial import LOWERINGS, Setting
from optgen.spec.composition.names import CompositionError
from optgen.spec.errors import SpecError

BATCH = 32

Draw = Callable[[str], tuple[str, list[Setting]]]
"""A function of a seed that returns a spec's text and settings.

It raises an error if the modifiers of a composition do not go together."""


@dataclass
class Tally:
    """Counts of rules by outcome; `refusals` counts them by the message of the SpecError."""

    drawn: int = 0
    refused: int = 0
    compared: int = 0
    incomparable: int = 0  # accepted, but no step was compared
    kinds: Counter[str] = field(default_factory=Counter)  # of the compared rules, by `kinds_of`
    failures: Counter[str] = field(default_factory=Counter)  # by the kind of the finding
    refusals: Counter[str] = field(default_factory=Counter)
    # by seed: 1 if no step of its rule was compared
    not_compared: Counter[str] = field(default_factory=Counter)
    steps: trial.Count = field(default_factory=trial.Count)
    spent: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        failures = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items()))
        share = self.steps.incomparable / max(self.steps.compared + self.steps.incomparable, 1)
        return (
            f"{self.drawn} drawn, {self.refused} refused, {self.compared} compared, "
            f"{self.incomparable} not comparable, {failures or 'none wrong'} "
            f"({share:.0%} of steps not compared)"
        )

    def refuse(self, error: CompositionError | SpecError) -> None:
        """Count a rule that is refused."""
        self.refused += 1
        self.refusals[error.message if isinstance(error, SpecError) else str(error)] += 1

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for name in ("drawn", "refused", "compared", "incomparable"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("kinds", "failures", "refusals", "not_compared", "spent"):
            getattr(self, name).update(getattr(other, name))
        self.steps.compared += other.steps.compared
        self.steps.incomparable += other.steps.incomparable


def hunt(
    seeds: Sequence[str],
    store_rule: Callable[[str], None] = lambda text: None,
    lowerings: Sequence[str] = LOWERINGS,
    draw: Draw = draw,
) -> tuple[Tally, list[Finding]]:
    """Draw a rule for every seed, and run all; `store_rule` gets each rule before it runs."""
    tally, findings = Tally(), list[Finding]()
    rules: list[tuple[str, built.Built, list[Setting]]] = []
    for seed in seeds:
        tally.drawn += 1
        started = time.process_time()
        rule, settings = None, list[Setting]()
        try:
            text, settings = draw(seed)
        except (CompositionError, SpecError) as error:
            tally.refuse(error)
        else:
            store_rule(text)
            rule = built_or_none(text, settings[0], tally, findings)
        tally.spent["read"] += time.process_time() - started  # type: ignore[assignment]
        if rule:
            rule.types = built.types_of(rule.algorithm, [s.dtype for s in settings])
            rules.append((seed, rule, settings))
    started = time.perf_counter()
    if "fused_cpu" in lowerings:
        built.compile_together([rule for _, rule, _ in rules])
    tally.spent["cpp"] += time.perf_counter() - started  # type: ignore[assignment]
    with built.batch_kernels([rule for _, rule, _ in rules]):
        for seed, rule, settings in rules:
            store_rule(rule.text)
            compared = tally.compared
            findings += tried(rule, settings, lowerings, tally)
            tally.not_compared[seed] += tally.compared == compared
    return tally, findings


def built_or_none(
    text: str, setting: Setting, tally: Tally, findings: list[Finding]
) -> built.Built | None:
    """Build the rule; return None if optgen refuses the rule or fails at it."""
    try:
        with limited():
            return built.load(text)
    except SpecError as error:
        tally.refuse(error)
    except Exception as error:
        tally.failures["crashed"] += 1
        findings.append(of_exception(error, "load", text, setting))
    return None


def tried(
    rule: built.Built,
    settings: Sequence[Setting],
    lowerings: Sequence[str],
    tally: Tally,
    sparing: bool = True,
) -> list[Finding]:
    """Return one finding for each lowering that is wrong under any of these settings.

    With `sparing`, some settings are not run in fused_triton.
    """
    findings: list[Finding] = []
    count = trial.Count()
    if rule.refused_by_cpp:
        message = rule.refused_by_cpp
        findings.append(Finding("does not compile", "fused_cpu", message, rule.text, settings[0]))
    for number, setting in enumerate(settings):
        remaining = [name for name in lowerings if suits(rule, name, setting)]
        if sparing and number in (0, 2):  # the interpreter takes longer than all others together
            remaining = [name for name in remaining if name != "fused_triton"]
        remaining = [name for name in remaining if name not in {f.lowering for f in findings}]
        findings += trial.run(rule, setting, remaining, count)
    tally.spent.update(count.spent)
    tally.compared += count.compared > 0
    if count.compared:
        tally.kinds.update(kinds_of(rule))
    tally.incomparable += count.compared == 0
    tally.steps.compared += count.compared
    tally.steps.incomparable += count.incomparable
    for kind in {f.kind for f in findings}:
        tally.failures[kind] += 1
    return findings


def kinds_of(rule: built.Built) -> Iterator[str]:
    """Yield the parts of the language by which the compared rules are counted."""
    algorithm = rule.algorithm
    if algorithm.has_matrix_ops or any(algorithm.matrix_states()):
        yield "matrices"
    if algorithm.is_wide:
        yield "groups"
    if rule.programs:
        yield "programs"
    if not algorithm.elementwise:
        yield "not elementwise"


def suits(rule: built.Built, lowering: str, setting: Setting) -> bool:
    """Tell whether to run a rule in this lowering with this setting.

    For elementwise rules `sharded` would only repeat foreach. `sharded` and `functional` run in
    float64 only.
    """
    if rule.cls.rule.why_uncut and lowering == "fused_triton":
        return False
    if rule.cls.rule.quantized_states and lowering == "functional":
        return False
    if rule.cls.rule.why_not_in_triton and lowering == "fused_triton":
        return False
    if lowering.startswith("fused") and rule.cls.rule.why_codes_are_not_read(lowering):
        return False
    if lowering == "fused_cpu":
        return rule.runs_fused
    if lowering == "sharded":
        return not rule.cls.rule.elementwise and setting.dtype == "float64"
    return lowering != "functional" or setting.dtype == "float64"
