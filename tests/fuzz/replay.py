"""Run old findings again, in every lowering."""

from __future__ import annotations

from pathlib import Path

from fuzz import built, kept
from fuzz.finding import Finding, of_exception
from fuzz.hunt import Tally, tried
from fuzz.limit import limited
from fuzz.trial import LOWERINGS
from optgen.spec.errors import SpecError


def replay(paths: list[Path]) -> int:
    """Print the findings that are still wrong; return 1 if there are any."""
    rules, wrong = [], 0
    for path in paths:
        finding = kept.read(path)
        assert finding.setting is not None
        try:
            with limited():
                rule = built.load(finding.text)
        except SpecError:
            continue  # a refusal is also right
        except Exception as error:
            report(path, of_exception(error, "load", finding.text))
            wrong += 1
        else:
            rules.append((path, finding.setting, rule))
    dtypes: dict[str, set[str]] = {}  # by text: two findings may be about one rule
    for _, setting, rule in rules:
        dtypes.setdefault(rule.text, set()).add(setting.dtype)
    for *_, rule in rules:
        rule.types = built.types_of(rule.algorithm, [*dtypes[rule.text]])
    built.compile_together([rule for *_, rule in rules])
    with built.batch_kernels([rule for *_, rule in rules]):
        for path, setting, rule in rules:
            for each in tried(rule, [setting], LOWERINGS, Tally(), sparing=False):
                report(path, each)
                wrong += 1
    print(f"{len(paths)} old findings, {wrong} failures now")
    return int(wrong > 0)


def report(path: Path, finding: Finding) -> None:
    """Print a finding."""
    print(f"{path}: {finding.kind}: {finding.lowering}: {finding.message}")
