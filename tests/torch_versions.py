"""Differences between the installed torch and the newest one, which optgen mirrors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

HAS_2_12 = torch.__version__ >= (2, 12)
HAS_2_13 = torch.__version__ >= (2, 13)
HAS_2_14 = torch.__version__ >= (2, 14)
HAS_2_15 = torch.__version__ >= (2, 15)
"""Tell whether the installed torch is at least the version in the name."""

adagrad_makes_missing_state = pytest.mark.skipif(
    not HAS_2_12, reason="torch's Adagrad makes a state that is missing since version 2.12"
)

TENSOR_RATES = {"Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RMSprop", "SGD"}
"""Classes whose functional form accepts a tensor learning rate; torch annotates it since 2.14."""


def only_newer_torch_refuses(name: str, kwargs: dict[str, Any]) -> bool:
    """Tell whether a newer torch than the installed one refuses these arguments."""
    newly_bounded = ("lambd", "alpha") if name == "ASGD" and not HAS_2_15 else ()
    return any(not kwargs[hyper] >= 0 for hyper in newly_bounded if hyper in kwargs)
