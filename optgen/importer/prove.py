"""Compare an imported class with the original: closed loops in float64, state by state."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.importer.explore import Rule
from optgen.importer.recording import NotImportedError
from optgen.importer.run import Argument, Subject
from optgen.importer.statements import asked_names

STEPS = 30
BOUND = 1e-12
SHAPES = ((6, 4), (3, 7), (5,), (1, 1), (2, 3, 4), ())
MIN_SETTINGS = 8


@dataclass(frozen=True)
class Difference:
    """The largest difference of one setting: of what, in which step, how large."""

    setting: Mapping[str, Any]
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
        keys: the state dicts were exchanged, in both directions.
    """

    num_settings: int
    shapes: tuple[tuple[int, ...], ...]
    largest: float
    keys: bool


def settings_of(subject: Subject, rule: Rule) -> list[dict[str, Any]]:
    """Return settings: the defaults, each argument changed, and mixtures."""
    asked = asked_names(rule.items)
    choices = {a.name: _choices(a, a.name in asked) for a in subject.arguments}
    found: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        found += [{name: value} for value in values]
    generator = random.Random(0)
    for _ in range(max(MIN_SETTINGS, len(found) // 2)):
        mixture = {name: generator.choice(values) for name, values in choices.items() if values}
        found.append({k: v for k, v in mixture.items() if generator.random() < 0.7})
    unique: list[dict[str, Any]] = []
    for each in found:
        if each not in unique:
            unique.append(each)
    return unique


def _choices(argument: Argument, is_asked: bool) -> list[Any]:
    """Return other values of an argument; 0 is one if the rule asks for the argument."""
    default = argument.default
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, tuple):
        return [tuple(type(x)(x * 0.9) if x * 0.9 != x else x for x in default)]
    if isinstance(default, int):
        return [default + 1, *([0] if default and is_asked else [])] if default else [0.05]
    return [default * 0.7, default * 1.3, *([0.0] if is_asked else [])] if default else [0.05]


class DiffersError(NotImportedError):
    """The rule and the original differ.

    Attributes:
        num_axes: the number of axes of the parameter that differs.
    """

    num_axes: int = 0


def prove(
    subject: Subject, rule: Rule, ours: Any, shapes: tuple[tuple[int, ...], ...] = SHAPES
) -> Proof:
    """Compare 30 closed-loop steps of both classes.

    Raises:
        NotImportedError: they differ by more than 1e-12; the message says where it begins.
    """
    compared, largest, are_exchanged = 0, 0.0, False
    for setting in settings_of(subject, rule):
        try:
            original = _Side(subject.cls, {**subject.settings, **setting}, shapes)
        except Exception:
            continue  # the original refuses the setting
        difference = _compare(original, ours, setting, shapes)
        if difference is None:
            continue
        if not difference.error <= BOUND:
            error = DiffersError(
                f"the rule differs from the original: {difference.what} by {difference.error:.1e} "
                f"in step {difference.step} with {dict(setting) or 'the defaults'}"
            )
            error.num_axes = len(re.findall(r"\d+[,)]", difference.what.rpartition("(")[2]))
            raise error
        compared += 1
        largest = max(largest, difference.error)
    if compared < 2:
        raise NotImportedError("the original takes no step with any setting")
    are_exchanged = _exchange(subject, ours, shapes)
    return Proof(compared, shapes, largest, are_exchanged)


class _Side:
    """One optimizer with its parameters, which get gradients at their own values."""

    def __init__(
        self, cls: Any, options: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self.params = [
            torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator))
            for shape in shapes
        ]
        self.targets = [
            torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes
        ]
        self.optimizer = cls(self.params, **options)

    def step(self, number: int) -> None:
        """Take a step on a smooth function of each parameter, with noise of its own."""
        generator = torch.Generator().manual_seed(number)
        for p, target in zip(self.params, self.targets, strict=True):
            noise = torch.randn(p.shape, dtype=torch.float64, generator=generator)
            p.grad = 0.3 * (p.detach() - target) + 0.1 * torch.sin(p.detach()) + 0.2 * noise
        with torch.no_grad():
            self.optimizer.step()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters and their states."""
        for n, p in enumerate(self.params):
            yield f"parameter {tuple(p.shape)}", p.detach()
            for key, x in self.optimizer.state[p].items():
                if isinstance(x, Tensor) and x.is_floating_point():
                    yield f"state {key} of number {n}, {tuple(p.shape)}", x.detach()


def _compare(
    original: _Side, ours: Any, setting: Mapping[str, Any], shapes: tuple[tuple[int, ...], ...]
) -> Difference | None:
    """Return the first difference above the bound, else the largest one."""
    mine = _Side(ours, _known(ours, setting), shapes)
    largest = Difference(setting, "nothing", 0, 0.0)
    for number in range(1, STEPS + 1):
        try:
            original.step(number)
        except Exception:
            return None if number == 1 else largest
        mine.step(number)
        theirs = dict(original.tensors())
        for what, x in mine.tensors():
            if what not in theirs:
                continue
            error = _error(x, theirs[what])
            if not error <= largest.error:
                largest = Difference(setting, what, number, error)
        if not largest.error <= BOUND:
            return largest
    return largest


def _known(ours: Any, setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a setting that the imported class has; the rest changes nothing."""
    import inspect

    return {k: v for k, v in setting.items() if k in inspect.signature(ours).parameters}


def _error(a: Tensor, b: Tensor) -> float:
    if a.numel() != b.numel():
        return float("inf")
    a, b = a.reshape(-1).double(), b.reshape(-1).double()
    if a.numel() == 0 or bool((a.isnan() & b.isnan()).all()):
        return 0.0
    scale = max(float(b.abs().max()), 1e-30)
    return float((a - b).abs().max()) / max(scale, 1.0)


def _exchange(subject: Subject, ours: Any, shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Tell if each side goes on with the other's state dict as with its own."""
    theirs = _Side(subject.cls, subject.settings, shapes)
    mine = _Side(ours, {}, shapes)
    for number in range(1, 4):
        theirs.step(number)
        mine.step(number)
    saved = copy.deepcopy(theirs.optimizer.state_dict())
    mine_saved = copy.deepcopy(mine.optimizer.state_dict())
    try:
        mine.optimizer.load_state_dict(saved)
        theirs.optimizer.load_state_dict(mine_saved)
        for number in range(4, 8):
            theirs.step(number)
            mine.step(number)
    except Exception:
        return False
    pairs = zip(theirs.params, mine.params, strict=True)
    return all(_error(a.detach(), b.detach()) <= BOUND for a, b in pairs)
