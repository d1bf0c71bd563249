"""The settings of arguments that a proof compares: the defaults, and other values of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from optgen.importer.rules import Rule
from optgen.importer.run import Argument, Subject
from optgen.importer.statements import asked_names, compared_numbers

MIN_SETTINGS = 8


def settings_of(subject: Subject, rule: Rule) -> tuple[list[dict[str, Any]], int]:
    """Return settings, and how many of them are to be compared.

    The settings are the defaults, each argument changed, and mixtures. An argument also gets each
    number that the recorded rule compares it with: the written rule may not ask for it any more. At
    least 8 are to be compared. There are more mixtures than that, for settings that the original
    refuses.
    """
    asked, compared = asked_names(rule.items), compared_numbers(rule.items)
    choices = {}
    for each in subject.arguments:
        values = _choices(each, is_asked=each.word in asked)
        values += [x for x in _compared(each, compared) if x not in values]
        choices[each.name] = values
    found: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        found += [{name: value} for value in values]
    generator = random.Random(0)
    num_wanted = max(MIN_SETTINGS, len(found) + len(found) // 2)
    for _ in range(20 * num_wanted):
        if len(found) >= 3 * num_wanted:
            break
        mixture = {name: generator.choice(values) for name, values in choices.items() if values}
        mixture = {k: v for k, v in mixture.items() if generator.random() < 0.7}
        if mixture not in found:
            found.append(mixture)
    return found, num_wanted


def _choices(argument: Argument, *, is_asked: bool) -> list[Any]:
    """Return other values of an argument; 0 is one if the rule asks for the argument."""
    default = argument.default
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, tuple):
        return [tuple(type(x)(x * 0.9) if x * 0.9 != x else x for x in default)]
    if isinstance(default, int):
        return [default + 1, *([0] if default and is_asked else [])] if default else [0.05]
    if not default:
        return [0.05, 0.1]
    return [default * 0.7, default * 1.3, default * 0.5, *([0.0] if is_asked else [])]


def _compared(argument: Argument, compared: Sequence[tuple[str, float]]) -> list[Any]:
    """Return the values of an argument in which it, or a number of it, is one that a rule asks for.

    A whole number stays one. A default of 0 may be a fraction.
    """
    default = argument.default
    if isinstance(default, bool):
        return []
    parts = default if isinstance(default, tuple) else (default,)
    found: list[Any] = []
    for n, part in enumerate(parts):
        word = f"{argument.word}[{n}]" if isinstance(default, tuple) else argument.word
        for name, number in compared:
            is_whole = isinstance(part, int) and part != 0
            if name != word or number == part or (is_whole and number % 1):
                continue
            value = int(number) if is_whole else float(number)
            changed = (*parts[:n], value, *parts[n + 1 :])
            found.append(changed if isinstance(default, tuple) else value)
    return found


def with_all_states(subject: Subject, rule: Rule) -> dict[str, Any]:
    """Return a setting with which states exist that do not with the defaults."""
    flags = {state.when for state in rule.states}
    off = [a for a in subject.arguments if a.word in flags and not a.default]
    return {a.name: _choices(a, is_asked=False)[0] for a in off}
