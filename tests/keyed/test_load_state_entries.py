"""Test loading of state entries that are no tensors."""

from typing import Any

import pytest
import torch
from keyed.models import content, parameters

from optgen.keyed import KeyedOptimizer


class Entry:
    """An entry that loads its own state, or fails at it once."""

    def __init__(self, value: float, fails: bool = False) -> None:
        self.tensor, self.fails = torch.tensor([value]), fails

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tensor.copy_(state_dict["tensor"])
        if self.fails:
            self.fails = False  # the load that restores the old state succeeds
            raise RuntimeError("refused")


def optimizer_with_entries(value: float, fails: bool = False) -> KeyedOptimizer:
    """Return a keyed optimizer whose state has entries of all kinds."""
    params = parameters()
    entries = {
        "number": value,
        "deep": {"tensor": torch.tensor([value]), "first": Entry(value)},
        "second": Entry(value, fails),
    }
    return KeyedOptimizer(params, {params["weight"]: entries}, [])


def test_entries_of_all_kinds_are_loaded() -> None:
    target, source = optimizer_with_entries(1.0), optimizer_with_entries(2.0)
    tensor = target.state_dict()["state"]["weight"]["deep"]["tensor"]
    target.load_state_dict(source.state_dict())

    assert content(target.state_dict()) == content(source.state_dict())
    assert tensor.item() == 2.0


def test_all_entries_are_restored_if_one_fails_to_load() -> None:
    target = optimizer_with_entries(1.0, fails=True)
    before = content(target.state_dict())
    with pytest.raises(RuntimeError, match="refused"):
        target.load_state_dict(optimizer_with_entries(2.0).state_dict())

    assert content(target.state_dict()) == before


def test_keys_of_nested_dicts_are_compared() -> None:
    checkpoint = optimizer_with_entries(2.0).state_dict()
    checkpoint["state"]["weight"]["deep"]["more"] = 1
    with pytest.raises(
        ValueError, match=r'vs \["tensor", "first", "more"\] .* \["weight", "deep"\]'
    ):
        optimizer_with_entries(1.0).load_state_dict(checkpoint)
