"""Compare an imported class with the original: closed loops in float64, state by state."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from optgen.importer.places import line_that_sets
from optgen.importer.recording import NotImportedError, failed
from optgen.importer.rules import Rule
from optgen.importer.run import Subject
from optgen.importer.settings import settings_of, with_all_states
from optgen.importer.sides import Course, Side, error_between, original_of, ours_of, with_first
from optgen.importer.statements import asked_counts, line_of

STEPS = 30
MAX_STEPS = 120
"""The steps that are taken to come to a step which the rule asks for."""
SCHEDULED_AT = 16
"""The step before which the numbers of the groups change, as a schedule does it."""
HALVED = Course({SCHEDULED_AT: 0.5})
VARIED = Course({1: 0.8, 6: 0.95, 11: 0.7, 16: 0.5, 21: 0.9})
"""Numbers that go up and down, and none as the constructor got it."""
BOUND = 1e-12
MAX_OWN_PRECISION = 1e-9
GRADIENTS = (1.0, 1e-6, 1e-9)
"""The magnitudes of gradients in the steps in float32."""
ROUNDINGS = 64
"""The roundings of float32 that steps may be apart: a difference such as v - m² loses digits."""
SHAPES = ((6, 4), (3, 7), (5,), (1, 1), (2, 3, 4), ())


@dataclass(frozen=True)
class Difference:
    """The largest difference of one setting: of what, in which step, how large.

    `key` is the state's key, or "" for a parameter.
    """

    setting: Mapping[str, Any]
    key: str
    what: str
    step: int
    error: float


@dataclass(frozen=True)
class Proof:
    """The comparison's result.

    Attributes:
        num_settings: how many settings of hyperparameters were compared.
        shapes: the shapes of the parameters.
        largest: the largest difference of an element, relative to the tensor's largest magnitude.
        keys: the state dicts were exchanged, in both directions. False: the original keeps numbers
            in the param group that are states here, or a state under the name of an argument, so
            neither reads the other's.
        num_refused: how many settings the original's constructor or step refused.
        rounding: the shortest dtype that the original rounds to inside a step, such as "bfloat16".
            The proof leaves this rounding out of the original. "" if there is none.
        left_out: the keys of the original's states that no step reads. The imported class has none
            of them.
    """

    num_settings: int
    shapes: tuple[tuple[int, ...], ...]
    largest: float
    keys: bool
    num_refused: int = 0
    rounding: str = ""
    left_out: tuple[str, ...] = ()
    gaps: bool = True
    """Both take the same steps if parameters have no gradients in some of them. It is False if the
    original counts these steps for such a parameter too, as a count in a group does, or fails."""


class DiffersError(NotImportedError):
    """The rule and the original differ.

    Attributes:
        num_axes: the number of axes of the parameter that differs.
    """

    num_axes: int = 0


class _OriginalFailsError(Exception):
    """The original's constructor or step raises an error; `refusal` says which."""

    def __init__(self, error: Exception, words: str) -> None:
        super().__init__(str(error))
        self.refusal = failed(error, words)


def prove(
    subject: Subject, rule: Rule, ours: Any, shapes: tuple[tuple[int, ...], ...] = SHAPES
) -> Proof:
    """Compare 30 closed-loop steps of both classes.

    Raises:
        NotImportedError: they differ by more than 1e-12, and by more than the original differs from
            itself after roundings of its input; the message says where it begins.
    """
    compared, refused, largest = 0, 0, 0.0
    settings, num_wanted = settings_of(subject, rule)
    for setting in settings:
        if compared == num_wanted:
            break
        try:
            difference = _compare(subject, ours, setting, shapes)
        except _OriginalFailsError as error:
            if not setting:
                raise _fails(error.refusal, shapes) from error
            refused += 1
            continue
        _check(difference, subject, rule, shapes)
        compared += 1
        largest = max(largest, difference.error)
    _vary(subject, rule, ours, shapes)
    _close(subject, rule, ours, shapes)
    rounding = _in_float32(subject, rule, ours, shapes)
    keys = all(
        _exchange(subject, ours, each, shapes) for each in ({}, with_all_states(subject, rule))
    )
    left_out = tuple(sorted(subject.left_out))
    gaps = len(shapes) < 2 or _agree_with_gaps(subject, ours, shapes)
    return Proof(compared, shapes, largest, keys, refused, rounding, left_out, gaps)


def _check(
    difference: Difference,
    subject: Subject,
    rule: Rule,
    shapes: Sequence[tuple[int, ...]],
    course: Course = HALVED,
) -> None:
    """Raise a refusal if a difference is above the bound, and above the original's precision."""
    if difference.error <= BOUND:
        return
    if not difference.error <= own_precision(subject, shapes, difference, course):
        raise _differs(difference, subject, rule, course)


def _vary(subject: Subject, rule: Rule, ours: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Compare two groups whose numbers go up and down, from a rate of 0 too.

    A schedule sets them before the first step, so no number is as the constructor got it. The steps
    go on to the last one that the rule asks for.
    """
    course = replace(VARIED, is_by_group=not subject.is_split)
    num_steps = max(STEPS, min(MAX_STEPS, 5 + max(asked_counts(rule.items), default=0)))
    group = original_of(subject, {}, shapes).first[0]
    rates = [a.default for a in subject.arguments if a.name == "lr" and a.default]
    from_zero = [{"lr": 0.0}] if rates == [group.get("lr")] else []
    for setting in ({}, *from_zero):
        try:
            difference = _compare(subject, ours, setting, shapes, course, num_steps)
        except _OriginalFailsError:
            continue
        _check(difference, subject, rule, shapes, course)
        num_steps = STEPS


def _close(subject: Subject, rule: Rule, ours: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Compare steps with a closure, which an original may call twice, or whose loss it may read."""
    sides = original_of(subject, {}, shapes), ours_of(subject, ours, {}, shapes)
    for number in range(1, 4):
        try:
            sides[0].step_with_closure(number)
        except Exception:
            return  # it takes no closure, or one whose loss has a graph
        if not sides[0].num_evaluations:
            return
        sides[1].step_with_closure(number)
        found = {what: x for _, what, x in sides[1].tensors()}
        errors = [
            Difference({}, key, what, number, error_between(found[what], x))
            for key, what, x in sides[0].tensors()
            if what in found
        ]
        calls = [side.num_evaluations for side in sides]
        largest = max(errors, key=lambda each: each.error)
        if calls[0] != calls[1] or not largest.error <= MAX_OWN_PRECISION:
            error = _differs(largest, subject, rule, when=", with a closure")
            error.hint = "call the closure once, before the step, and read no number of its loss"
            raise error


def _agree_with_gaps(subject: Subject, ours: Any, shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Tell if both take the same steps when parameters have no gradients in some of them."""
    sides = original_of(subject, {}, shapes), ours_of(subject, ours, {}, shapes)
    for number in range(1, 8):
        without = slice(1, None, 2) if number in (3, 4) else None
        try:
            for side in sides:
                side.step(number, without=without)
        except Exception:
            return False
    found = {what: x for _, what, x in sides[1].tensors()}
    return all(
        error_between(found[what], x) <= MAX_OWN_PRECISION
        for _, what, x in sides[0].tensors()
        if what in found
    )


def _fails(refusal: NotImportedError, shapes: tuple[tuple[int, ...], ...]) -> DiffersError:
    """Return the refusal of a class that fails; it may do so for parameters of three axes only."""
    error = DiffersError(refusal.reason, refusal.place, refusal.hint)
    error.num_axes = max(map(len, shapes))
    return error


def _differs(
    difference: Difference, subject: Subject, rule: Rule, course: Course = HALVED, *, when: str = ""
) -> DiffersError:
    """Return the refusal of a difference at the line that computes what differs.

    `when`: words that say under which circumstances it was found.
    """
    hint = (
        "let the step compute with tensors, arguments and states alone, without float(…) or other "
        "parameters; fix arguments by --set, or write a spec by hand"
    )
    if course.is_by_group:
        when = ", with two groups whose numbers differ, and change before some steps"
        hint = "read the numbers in the parameter's group in each step, under the arguments' names"
    elif difference.step >= SCHEDULED_AT:
        when = f", after the numbers of the groups had changed before step {SCHEDULED_AT}"
        hint = "read the numbers in the group in each step, under the arguments' names"
    name = subject.state_word(difference.key) if difference.key else "p"
    error = DiffersError(
        f"the rule differs from the original: {difference.what} by {difference.error:.1e} "
        f"in step {difference.step} with {_words(difference.setting)}{when}",
        line_of(rule.items, name),
        hint,
    )
    error.num_axes = len(re.findall(r"\d+[,)]", difference.what.rpartition("(")[2]))
    return error


def _words(setting: Mapping[str, Any]) -> str:
    return str(dict(setting)) if setting else "the defaults"


def own_precision(
    subject: Subject, shapes: Sequence[tuple[int, ...]], at: Difference, course: Course
) -> float:
    """Return how far the original goes from itself if its numbers are one rounding apart.

    The parameters begin so; then each gradient is so too, up and down by turns. A single number may
    lose a rounding of its first value in the next sum. Four times the largest distance counts, up
    to 1e-9: a difference of sums may hold few digits.
    """
    if not at.error <= MAX_OWN_PRECISION:
        return BOUND
    eps = torch.finfo(torch.float64).eps
    by_turns = [(1.0, 1.0), (1.0 + eps, 1.0 - eps), (1.0 - eps, 1.0 + eps)]
    sides = [
        original_of(subject, at.setting, shapes, are_two=course.is_by_group)
        for _ in range(1 + len(by_turns))
    ]
    for p in (p for nudged in sides[1:] for p in nudged.params):
        p.data.mul_(1 + eps)
    for number in range(1, at.step + 1):
        for each, scales in zip(sides, [(1.0, 1.0), *by_turns], strict=True):
            each.schedule(_scheduled(subject, each), course, number)
            each.step(number, scales[number % 2])
    plain, *nudged = ({what: x for _, what, x in each.tensors()}[at.what] for each in sides)
    return min(4 * max(error_between(x, plain) for x in nudged), MAX_OWN_PRECISION)


def _scheduled(subject: Subject, original: Side) -> set[str]:
    """Return the arguments that are fractions in the original's groups, and read there."""
    group = original.optimizer.param_groups[0]
    numbers = {a.name: group.get(a.name) for a in subject.arguments}
    return {
        name
        for name, x in numbers.items()
        if name not in subject.kept
        and all(type(each) is float for each in (x if isinstance(x, tuple) else [x]))
    }


def _in_float32(
    subject: Subject, rule: Rule, ours: Any, shapes: tuple[tuple[int, ...], ...]
) -> str:
    """Compare a few steps in float32, with gradients of several magnitudes.

    So a number that is a float64's own in the rule, such as a dtype's eps, is found.

    Returns:
        The shortest dtype that the original rounds to inside a step, or "".

    Raises:
        NotImportedError: the steps differ by more than some roundings, and by more than the
            original from itself after one.
    """
    dtype = _rounded_to(subject, shapes)
    eps = torch.finfo(dtype).eps
    num_roundings = ROUNDINGS if dtype is torch.float32 else 4
    for scale in GRADIENTS:
        theirs, nudged = (original_of(subject, {}, shapes, torch.float32) for _ in range(2))
        mine = ours_of(subject, ours, {}, shapes, torch.float32)
        for p in nudged.params:
            p.data.mul_(1 + torch.finfo(torch.float32).eps)
        for number in range(1, 4):
            for side in (theirs, nudged, mine):
                side.step(number, scale)
            found, own = ({what: x for _, what, x in each.tensors()} for each in (mine, nudged))
            for key, what, x in theirs.tensors():
                if (
                    what not in found
                    or (error := error_between(found[what], x)) <= num_roundings * eps
                ):
                    continue
                if not error <= min(4 * error_between(own[what], x), eps**0.5):
                    words = f", in float32 with gradients of about {scale:g}"
                    found_there = Difference({}, key, what, number, error)
                    raise _differs(found_there, subject, rule, when=words)
    return str(dtype).removeprefix("torch.") if subject.is_wide else ""


def _rounded_to(subject: Subject, shapes: tuple[tuple[int, ...], ...]) -> torch.dtype:
    """Return the shortest dtype that the original rounds to inside a step in float32."""
    if not subject.is_wide:
        return torch.float32
    probe = original_of(subject, {}, shapes)
    probe.step(1)
    return max(probe.replaced, key=lambda each: torch.finfo(each).eps, default=torch.float32)


def _compare(
    subject: Subject,
    ours: Any,
    setting: Mapping[str, Any],
    shapes: tuple[tuple[int, ...], ...],
    course: Course = HALVED,
    num_steps: int = STEPS,
) -> Difference:
    """Return the first difference above the bound, else the largest one.

    Raises:
        NotImportedError: the imported class fails, or a state of the original is not in the rule.
    """
    words = f" in the proof, with {_words(setting)}"
    try:
        original = original_of(subject, setting, shapes, are_two=course.is_by_group)
    except Exception as error:
        raise _OriginalFailsError(error, words) from error
    try:
        first = with_first(subject, setting)
        mine = ours_of(subject, ours, first, shapes, are_two=course.is_by_group)
    except Exception as error:
        raise _ours_fails(error, words) from error
    largest = Difference(setting, "", "nothing", 0, 0.0)
    scheduled = _scheduled(subject, original)
    for number in range(1, num_steps + 1):
        for side in (original, mine):
            side.schedule(scheduled, course, number)
        try:
            original.step(number)
        except Exception as error:
            raise _OriginalFailsError(error, words) from error
        try:
            mine.step(number)
        except Exception as error:
            raise _ours_fails(error, words) from error
        found = {what: x for _, what, x in mine.tensors()}
        for key, what, x in original.tensors():
            if what not in found and key in (*subject.counters, *subject.left_out):
                continue  # a rule keeps no step count and no state that it does not read
            if what not in found:
                words = f"the original has the {what}, which the rule lacks"
                raise NotImportedError(words, line_that_sets(subject.cls, key))
            error_of_x = error_between(found[what], x)
            if not error_of_x <= largest.error:
                largest = Difference(setting, key, what, number, error_of_x)
        if not largest.error <= BOUND:
            return largest
    return largest


def _ours_fails(error: Exception, words: str) -> NotImportedError:
    """Return an error of the imported class as a refusal."""
    return NotImportedError(f"the imported class fails{words}: {type(error).__name__}: {error}")


def _exchange(
    subject: Subject, ours: Any, setting: Mapping[str, Any], shapes: tuple[tuple[int, ...], ...]
) -> bool:
    """Let each side go on with the other's state dict, and compare it with its own course.

    Returns:
        False if the original keeps a counter or a number that steps change in its param group, a
        counter in an attribute, or a state under the name of an argument.

    Raises:
        NotImportedError: a state dict is not taken, or the steps after it differ.
    """
    if subject.own_counters or any(subject.key(each) != each for each in subject.state_keys):
        return False
    theirs = original_of(subject, setting, shapes)
    mine = ours_of(subject, ours, setting, shapes)
    for number in range(1, 4):
        for side in (theirs, mine):
            side.step(number)
    if {*subject.counters, *subject.group_numbers} & {
        *theirs.optimizer.param_groups[0],
        *(key for key in theirs.optimizer.state if not isinstance(key, Tensor)),
    }:
        return False
    saved = copy.deepcopy(theirs.optimizer.state_dict())
    mine_saved = copy.deepcopy(mine.optimizer.state_dict())
    for group, original in zip(mine_saved["param_groups"], saved["param_groups"], strict=True):
        for key, value in original.items():
            group.setdefault(key, value)  # a fixed argument is no argument of the imported class
    try:
        mine.optimizer.load_state_dict(saved)
        theirs.optimizer.load_state_dict(mine_saved)
        for number in range(4, 8):
            for side in (theirs, mine):
                side.step(number)
    except Exception as error:
        raise NotImportedError(
            f"the state dicts cannot be exchanged: {type(error).__name__}: {error}"
        ) from error
    bound = BOUND
    if _rounds_states(saved, subject):
        bound = 4 * torch.finfo(torch.float32).eps
    for a, b in zip(theirs.params, mine.params, strict=True):
        if not (error_of_p := error_between(b.detach(), a.detach())) <= bound:
            raise NotImportedError(
                f"the steps after an exchange of state dicts differ by {error_of_p:.1e} with "
                f"{_words(setting)}",
                hint="keep all that a step reads in self.state[p], a count of steps too",
            )
    return True


def _rounds_states(saved: Mapping[str, Any], subject: Subject) -> bool:
    """Tell if the original keeps a number in float32 beside parameters in float64.

    A class that has loaded such a number may keep it in float64.
    """
    return any(
        isinstance(x, Tensor) and x.dtype == torch.float32 and key not in subject.counters
        for state in saved["state"].values()
        for key, x in state.items()
    )
