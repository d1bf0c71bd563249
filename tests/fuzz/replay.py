"""Run findings from files again, in every lowering."""

from __future__ import annotations

from pathlib import Path

from fuzz import build, finding_files
from fuzz.finding import Finding, finding_of_exception
from fuzz.hunt import Tally, check_rule
from fuzz.time_limit import time_limit
from fuzz.trial import LOWERINGS
from optgen.spec.errors import SpecError


def replay(paths: list[Path]) -> int:
    """Print the failures of the findings' rules; return 1 if there are any."""
    rules, num_failures = [], 0
    for path in paths:
        finding = finding_files.read_finding(path)
        assert finding.setting is not None
        try:
            with time_limit():
                rule = build.load(finding.text)
        except SpecError:
            continue  # a refused rule computes nothing wrong
        except Exception as error:
            print_failure(path, finding_of_exception(error, "load", finding.text))
            num_failures += 1
        else:
            rules.append((path, finding.setting, rule))
    dtypes_by_rule: dict[str, set[str]] = {}  # by rule text: findings may share a rule
    for _, setting, rule in rules:
        dtypes_by_rule.setdefault(rule.text, set()).add(setting.dtype)
    for *_, rule in rules:
        rule.dtype_bits = build.dtype_bits_of(rule.algorithm, [*dtypes_by_rule[rule.text]])
    build.compile_together([rule for *_, rule in rules])
    with build.batch_kernels([rule for *_, rule in rules]):
        for path, setting, rule in rules:
            for failure in check_rule(
                rule, [setting], LOWERINGS, Tally(), skip_some_triton_runs=False
            ):
                print_failure(path, failure)
                num_failures += 1
    print(f"{len(paths)} old findings, {num_failures} failures now")
    return int(num_failures > 0)


def print_failure(path: Path, finding: Finding) -> None:
    """Print a failure, and the file with its rule."""
    print(f"{path}: {finding.kind}: {finding.lowering}: {finding.message}")
