"""Test loading by name: entries of a state that are no tensors."""

from typing import Any

import pytest
import torch
from keyed.models import content, parameters

from optgen.keyed import KeyedOptimizer


class Entry:
    """An entry that loads itself, or refuses to."""

    def __init__(self, value: float, works: bool = True) -> None:
        self.tensor, self.works = torch.tensor([value]), works

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tensor.copy_(state_dict["tensor"])
        if not self.works:
            self.works = True  # the load that restores the old state succeeds
            raise RuntimeError("refused")


def nested(value: float, works: bool = True) -> KeyedOptimizer:
    """Return a keyed optimizer whose state has entries of all kinds."""
    params = parameters()
    entries = {
        "number": value,
        "deep": {"tensor": torch.tensor([value]), "first": Entry(value)},
        "second": Entry(value, works),
    }
    return KeyedOptimizer(params, {params["weight"]: entries}, [])


def test_entries_of_all_kinds_are_loaded() -> None:
    target, source = nested(1.0), nested(2.0)
    tensor = target.state_dict()["state"]["weight"]["deep"]["tensor"]
    target.load_state_dict(source.state_dict())

    assert content(target.state_dict()) == content(source.state_dict())
    assert tensor.item() == 2.0


def test_entries_are_restored_if_one_refuses() -> None:
    target = nested(1.0, works=False)
    before = content(target.state_dict())
    with pytest.raises(RuntimeError, match="refused"):
        target.load_state_dict(nested(2.0).state_dict())

    assert content(target.state_dict()) == before


def test_deep_entries_are_compared() -> None:
    packed = nested(2.0).state_dict()
    packed["state"]["weight"]["deep"]["more"] = 1
    with pytest.raises(
        ValueError, match=r'vs \["tensor", "first", "more"\] .* \["weight", "deep"\]'
    ):
        nested(1.0).load_state_dict(packed)
