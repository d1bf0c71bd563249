"""Describe a rule before it is drawn: its signature, and what its statements may contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar


@dataclass
class State:
    """A state as the signature declares it."""

    symbol: str
    nature: str  # the list of `Known` that the symbol belongs to
    options: str = ""
    condition: str = ""  # the condition under which the state exists


@dataclass
class Draft:
    """A rule's signature, drawn before its statements, and what the statements may contain."""

    rng: Random
    has_odd_forms: bool  # many forms and constants are unusual
    family: str  # elements: no reductions; numbers: reductions to numbers; axes: also to rows
    reads_step_count: bool
    has_few_names: bool  # whether the rule has many short statements with few names
    states: list[State] = field(default_factory=list)
    requires_matrix: bool = False
    has_random_numbers: bool = False
    has_matrices: bool = False  # whether the rule works on whole matrices
    has_thin_matrices: bool = False  # whether an axis of some matrices has length `rank`
    may_round_beside_matrices: bool = False

    DECLARATIONS: ClassVar = {
        "lr": "hyper(0.1, ge=0)",
        "c": "hyper(0.5)",
        "eps": "hyper(0.25, gt=0)",
        "betas": "hyper((0.5, 0.75), ge=0, lt=1)",
        "opt": "hyper(None, optional=True)",
        "pair": "hyper((None, 0.5), optional=True)",
        "fa": "flag(False)",
        "fb": "flag(True)",
        "fix": "fixed(True)",
        "mode": 'choice("a", "b", None)',
        "poly": "hyper((1.5, -0.5, 0.0))",
        "rank": "hyper(2, ge=1, whole=True)",
    }
    HYPER_VALUES: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "lr": (0.1, 0.01, 0.5),
        "c": (0.5, -0.5, 0.0, 2.0),
        "eps": (0.25, 1.0),
        "betas": ((0.5, 0.75), (0.0, 0.25), (0.9, 0.5)),
        "opt": (None, 0.5, 0.0),
        "pair": ((None, 0.5), (1.5, 0.25)),
        "fa": (False, True),
        "fb": (True, False),
        "mode": ("a", "b", None),
        "rank": (1, 2, 3, 100),
    }
