"""Draw rules, build and run them, and collect the findings."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fuzz import build, trial
from fuzz.draw import draw
from fuzz.finding import Finding, finding_of_exception
from fuzz.time_limit import time_limit
from fuzz.trial import LOWERINGS, Setting
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError

RULES_PER_JOB = 64
"""The C++ of these rules is compiled together: a start of the compiler costs as much as a rule."""

Draw = Callable[[str], tuple[str, list[Setting]]]
"""A function of a seed that returns a spec's text and settings.

The function raises an error if optgen refuses the modifiers of a composition."""


@dataclass
class Tally:
    """Counts of rules by outcome; `refusals` counts refused rules by error message."""

    drawn: int = 0
    refused: int = 0
    compared: int = 0
    incomparable: int = 0  # accepted, but no step was compared
    features: Counter[str] = field(default_factory=Counter)  # of compared rules, by `features_of`
    failures: Counter[str] = field(default_factory=Counter)  # by kind of finding
    refusals: Counter[str] = field(default_factory=Counter)
    # by seed: 1 if no step of the rule was compared
    not_compared_by_seed: Counter[str] = field(default_factory=Counter)
    steps: trial.StepCounts = field(default_factory=trial.StepCounts)
    seconds: Counter[str] = field(default_factory=Counter)  # by stage or lowering

    def __str__(self) -> str:
        failures = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items()))
        share = self.steps.incomparable / max(self.steps.compared + self.steps.incomparable, 1)
        return (
            f"{self.drawn} drawn, {self.refused} refused, {self.compared} compared, "
            f"{self.incomparable} not comparable, {failures or 'none wrong'} "
            f"({share:.0%} of steps not compared)"
        )

    def refuse(self, error: CompositionError | SpecError) -> None:
        """Count a refused rule."""
        self.refused += 1
        self.refusals[error.message if isinstance(error, SpecError) else str(error)] += 1

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for name in ("drawn", "refused", "compared", "incomparable"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("features", "failures", "refusals", "not_compared_by_seed", "seconds"):
            getattr(self, name).update(getattr(other, name))
        self.steps.compared += other.steps.compared
        self.steps.incomparable += other.steps.incomparable


def hunt(
    seeds: Sequence[str],
    store_rule: Callable[[str], None] = lambda text: None,
    lowerings: Sequence[str] = LOWERINGS,
    draw: Draw = draw,
    feature: str = "",
) -> tuple[Tally, list[Finding]]:
    """Draw a rule for every seed, and run all; `store_rule` gets each rule before optgen does.

    Rules without a feature of `features_of` are not run, if one is given.
    """
    tally, findings = Tally(), list[Finding]()
    rules: list[tuple[str, build.BuiltRule, list[Setting]]] = []
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
            rule = build_or_none(text, settings[0], tally, findings)
        tally.seconds["read"] += time.process_time() - started  # type: ignore[assignment]
        if rule and (not feature or feature in features_of(rule)):
            rule.dtype_bits = build.dtype_bits_of(rule.algorithm, [s.dtype for s in settings])
            rules.append((seed, rule, settings))
    started = _compilers_seconds()
    if "fused_cpu" in lowerings:
        build.compile_together([rule for _, rule, _ in rules])
    tally.seconds["cpp"] += _compilers_seconds() - started  # type: ignore[assignment]
    with build.batch_kernels([rule for _, rule, _ in rules]):
        for seed, rule, settings in rules:
            store_rule(rule.text)
            compared_before = tally.compared
            findings += check_rule(rule, settings, lowerings, tally)
            tally.not_compared_by_seed[seed] += tally.compared == compared_before
    return tally, findings


def _compilers_seconds() -> float:
    """Return the processor time of the compilers that have ended."""
    return sum(os.times()[2:4])


def build_or_none(
    text: str, setting: Setting, tally: Tally, findings: list[Finding]
) -> build.BuiltRule | None:
    """Build the rule; if optgen refuses it or crashes, record this and return None."""
    try:
        with time_limit():
            return build.load(text)
    except SpecError as error:
        tally.refuse(error)
    except Exception as error:
        tally.failures["crashed"] += 1
        findings.append(finding_of_exception(error, "load", text, setting))
    return None


def check_rule(
    rule: build.BuiltRule,
    settings: Sequence[Setting],
    lowerings: Sequence[str],
    tally: Tally,
    skip_some_triton_runs: bool = True,
) -> list[Finding]:
    """Run a rule with all settings; return a finding for each lowering that goes wrong."""
    findings: list[Finding] = []
    counts = trial.StepCounts()
    if rule.refused_by_cpp:
        message = rule.refused_by_cpp
        findings.append(Finding("does not compile", "fused_cpu", message, rule.text, settings[0]))
    for number, setting in enumerate(settings):
        remaining = [name for name in lowerings if runs_in(rule, name, setting)]
        if skip_some_triton_runs and number in (0, 2):  # Triton takes longer than all others
            remaining = [name for name in remaining if name != "fused_triton"]
        remaining = [name for name in remaining if name not in {f.lowering for f in findings}]
        findings += trial.run(rule, setting, remaining, counts)
    tally.seconds.update(counts.seconds)
    tally.compared += counts.compared > 0
    if counts.compared:
        tally.features.update(features_of(rule))
    tally.incomparable += counts.compared == 0
    tally.steps.compared += counts.compared
    tally.steps.incomparable += counts.incomparable
    for kind in {f.kind for f in findings}:
        tally.failures[kind] += 1
    return findings


def features_of(rule: build.BuiltRule) -> Iterator[str]:
    """Yield the features of the language that a rule uses, as the report counts them."""
    algorithm = rule.algorithm
    if algorithm.has_matrix_ops or any(algorithm.matrix_states()):
        yield "matrices"
    if algorithm.is_wide:
        yield "groups"
    if rule.programs:
        yield "programs"
    if not algorithm.elementwise:
        yield "not elementwise"


def runs_in(rule: build.BuiltRule, lowering: str, setting: Setting) -> bool:
    """Tell whether to run a rule in this lowering with this setting.

    For elementwise rules `sharded` would only repeat foreach. `sharded` and `functional` run in
    float64 only.
    """
    if rule.cls.rule.why_no_sweeps and lowering == "fused_triton":
        return False
    if rule.cls.rule.quantized_states and lowering == "functional":
        return False
    if rule.cls.rule.why_not_in_triton and lowering == "fused_triton":
        return False
    if lowering.startswith("fused") and rule.cls.rule.why_codes_are_not_read(lowering):
        return False
    if lowering == "fused_cpu":
        return rule.has_cpp_kernels
    if lowering == "sharded":
        return not rule.cls.rule.elementwise and setting.dtype == "float64"
    return lowering != "functional" or setting.dtype == "float64"
