"""Bring your own optimizer: read a class's step, write its rule as a spec, and prove them equal.

The class's own code runs once, on values that record what is computed from what. Nothing of it is
needed later: the spec is all that stays (docs/decisions/0110-an-import-is-proven.md).
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optgen import jit
from optgen.importer.parameters import TOTALS
from optgen.importer.precision import SIXTEEN_BITS
from optgen.importer.prove import SHAPES, DiffersError, Proof, prove
from optgen.importer.recording import (
    ClassFailsError,
    NotImportedError,
    ReadTwiceError,
    complete,
    defect,
    failed,
    is_author_file,
)
from optgen.importer.rules import Rule, find_rule
from optgen.importer.run import Subject, find_subject
from optgen.importer.statements import line_of
from optgen.importer.write import spec_text
from optgen.spec.declare import Spec
from optgen.spec.errors import SpecError

if TYPE_CHECKING:
    from optgen.runtime.optimizer import LoadedOptimizer

__all__ = ["Imported", "NotImportedError", "Proof", "import_optimizer"]


@dataclass(frozen=True)
class Imported:
    """An imported optimizer.

    Attributes:
        text: the spec.
        optimizer: the class that optgen made from the spec.
        proof: the comparison with the original.
        num_runs: how many runs of the original's step were recorded.
        seconds: how long it took.
    """

    text: str
    optimizer: type[LoadedOptimizer]
    proof: Proof
    num_runs: int
    seconds: float


def import_optimizer(
    cls: type, *, out: str | os.PathLike[str] | None = None, **settings: Any
) -> Imported:
    """Make a spec from an optimizer class, and prove that both take the same steps.

    The class's code is run, here and now.

    Args:
        cls: a subclass of `torch.optim.Optimizer`, with a step that is written in PyTorch.
        out: a file to write the spec into.
        **settings: arguments of the constructor to fix, such as `foreach=False`. They are not
            arguments of the imported class.

    Returns:
        The spec, the class that optgen makes from it, and the proof: 30 steps in float64, each
        class with the gradients at its own parameters, for several shapes and settings.

    Raises:
        NotImportedError: the step cannot be said as a spec, or the proof fails. The message has
            the line of the author's file, the reason, and what to write instead.
    """
    try:
        imported = _imported(cls, settings)
    except NotImportedError as refusal:
        complete(refusal, cls)
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if is_author_file(frame.f_code.co_filename) and "/optgen/" not in frame.f_code.co_filename:
            raise failed(error) from error
        raise defect(error, getattr(cls, "__name__", repr(cls))) from error
    if out is not None:
        Path(out).write_text(imported.text, encoding="utf-8")
    return imported


def _imported(cls: type, settings: Mapping[str, Any]) -> Imported:
    """Return the import for all parameters, or for matrices alone.

    The second is tried if the rule cannot be said of vectors, or if the class asks its groups which
    parameters are matrices. It is not tried for another class whose rule differs.
    """
    began = time.perf_counter()
    first: NotImportedError | None = None
    for is_for_matrices in (False, True):
        is_split = False
        try:
            for subject in _subjects(cls, settings, is_for_matrices):
                is_split = subject.is_split
                try:
                    text, optimizer, proof, runs = _proven(subject)
                except NotImportedError as refusal:
                    first = _better(first, refusal)
                else:
                    return Imported(text, optimizer, proof, runs, time.perf_counter() - began)
        except NotImportedError as refusal:
            first = _better(first, refusal)
        except Exception:
            if first is None:
                raise
        if isinstance(first, DiffersError) and not is_split:
            break
    assert first is not None
    raise first


def _better(first: NotImportedError | None, second: NotImportedError) -> NotImportedError:
    """Return the refusal to report: the first one, unless the class only failed in that run.

    Of two rules that differ, the second one has the original's precision.
    """
    both_differ = isinstance(first, DiffersError) and isinstance(second, DiffersError)
    return second if first is None or isinstance(first, ClassFailsError) or both_differ else first


def _subjects(cls: type, settings: Mapping[str, Any], is_for_matrices: bool) -> Iterator[Subject]:
    """Yield the class with its roundings, and without them if it has some.

    With roundings to 16 bits no proof in float64 can hold.
    """
    wide = find_subject(cls, settings, is_wide=True, is_for_matrices=is_for_matrices)
    if wide.rounded.isdisjoint(SIXTEEN_BITS):
        try:
            yield find_subject(cls, settings, is_for_matrices=is_for_matrices)
        except NotImportedError:
            if not wide.rounded:
                raise
    if wide.rounded:
        yield wide


def _proven(subject: Subject) -> tuple[str, type[LoadedOptimizer], Proof, int]:
    """Return the spec, the class and the proof.

    Sums that begin with 0 are taken for sums over all parameters first, then over a group's, then
    over this parameter alone: the first one that is proven holds.
    """
    first: NotImportedError | None = None
    for totals in TOTALS:
        found = _write(replace(subject, totals=totals))
        try:
            return _compared(*found)
        except NotImportedError as refusal:
            first = first or refusal
            if not found[1].has_totals:
                break
    assert first is not None
    raise first


def _compared(
    text: str, rule: Rule, subject: Subject
) -> tuple[str, type[LoadedOptimizer], Proof, int]:
    """Return the spec, the class and the proof. A rule may be one for matrices and vectors only."""
    ours = _loaded(subject.cls, text, rule)
    shapes = tuple(s for s in SHAPES if len(s) == 2) if subject.is_for_matrices else SHAPES
    try:
        proof = _proof(subject, rule, ours, shapes)
    except DiffersError as error:
        if error.num_axes < 3:
            raise
        text = spec_text(subject, rule, max_axes=2)
        ours = _loaded(subject.cls, text, rule)
        proof = _proof(subject, rule, ours, tuple(s for s in shapes if len(s) < 3))
    return text, ours, proof, rule.num_runs


def _proof(subject: Subject, rule: Rule, ours: Any, shapes: tuple[tuple[int, ...], ...]) -> Proof:
    """Return the proof; a refusal has the line of the last change of the parameter, or its own."""
    try:
        return prove(subject, rule, ours, shapes)
    except NotImportedError as refusal:
        if not refusal.place[0]:
            refusal.place = line_of(rule.items, "p")
        raise


def _loaded(cls: type, text: str, rule: Rule) -> type[LoadedOptimizer]:
    """Return the class of a spec; a refusal has the author's line of what the spec's line sets."""
    try:
        return jit.load(Spec(_file_name(cls), text, f"{_file_name(cls)}.py", 1))
    except SpecError as error:
        line = text.split("\n")[error.place.line - 1].partition(" = ")[0].strip()
        places = [line_of(rule.items, name) for name in (line, "p")]
        place = next((each for each in places if each[0]), ("", 0))
        raise NotImportedError(f"the language does not take the rule: {error}", place) from error


def _write(subject: Subject) -> tuple[str, Rule, Subject]:
    """Return the text of a spec, with the rule and what was learned about the class."""
    while True:
        try:
            rule = find_rule(subject)
            break
        except ReadTwiceError as error:
            if not subject.can_be_own(error.name):
                raise
            subject = replace(subject, own=subject.own | {error.name})
    if lost := {a.name: a.default for a in subject.arguments if a.word in rule.lost}:
        arguments = tuple(a for a in subject.arguments if a.name not in lost)
        settings = {**subject.settings, **lost}  # the length of a loop keeps its default
        return _write(replace(subject, arguments=arguments, settings=settings))
    subject = replace(subject, reduces_all=rule.reduces_all, kept=rule.kept, left_out=rule.left_out)
    return spec_text(subject, rule), rule, subject


def _file_name(cls: type) -> str:
    """Return the spec's name: the class's name as a snake_case word."""
    name = ""
    for n, letter in enumerate(cls.__name__):
        if letter.isupper() and n and not cls.__name__[n - 1].isupper():
            name += "_"
        name += letter.lower()
    return name.strip("_")
