"""Test that a branch of a class for one number is in the rule unless it says nothing new."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from optgen.importer import import_optimizer, tidy
from optgen.importer.prove import DiffersError
from optgen.importer.rules import find_rule
from optgen.importer.run import find_subject
from optgen.importer.settings import settings_of
from optgen.importer.statements import If, Item, compared_numbers
from tests.importer.test_import_places import Base


class WithNu(Base):
    """A rule with a number, which has a case of its own where it is 1."""

    def __init__(self, params: Any, lr: float = 0.1, nu: float = 0.7) -> None:
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, "nu": nu})


class EarlierValue(WithNu):
    """The case for 1 divides the new sum, the other one divides the sum before."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["total"] = torch.zeros_like(p)
        m, nu = state["total"], group["nu"]
        if nu == 1:
            m.add_(grad)
            d = m / (m.abs() + 1)
        else:
            old = m.clone()
            m.add_(nu * grad)
            d = old / (m.abs() + 1)
        p.sub_(group["lr"] * d)


class Guarded(WithNu):
    """A division by 0 is left out."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        nu, d = group["nu"], grad
        if nu != 1:
            d = d + (1 - nu) * (p / (1 - nu)).abs()
        p.sub_(group["lr"] * d)


class GuardedInTuple(Base):
    """The number is one of a tuple, and another one is a whole number."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        nus: tuple[float, float] = (0.7, 0.5),
        power: int = 3,
        is_on: bool = True,
    ) -> None:
        torch.optim.Optimizer.__init__(
            self, params, {"lr": lr, "nus": nus, "power": power, "is_on": is_on}
        )

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        d = grad
        if group["nus"][1] != 1:
            d = d + (1 - group["nus"][1]) * (p / (1 - group["nus"][1])).abs()
        if group["power"] == 2:
            d = d + 0.1 * p
        if group["is_on"]:
            d = d * group["nus"][0]
        p.sub_(group["lr"] * d)


def course(cls: type, **settings: Any) -> torch.Tensor:
    """Return a parameter after three steps."""
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = cls([p], lr=0.1, **settings)
    for number in range(3):
        p.grad = torch.full_like(p, 0.5 + 0.1 * number)
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("cls", [EarlierValue, Guarded])
def test_a_case_of_one_number_is_as_in_the_original(cls: type) -> None:
    made = import_optimizer(cls)

    assert "if nu == 1:" in made.text or "if nu != 1:" in made.text
    for nu in (1.0, 0.7):
        expected = course(cls, nu=nu)
        assert expected.isfinite().all()
        torch.testing.assert_close(course(made.optimizer, nu=nu), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("cls", [EarlierValue, Guarded])
def test_the_proof_finds_a_case_that_was_left_out_wrongly(
    cls: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(items: list[Item], *_: object) -> list[Item]:
        made = [each.other or each.then if isinstance(each, If) else (each,) for each in items]
        return [item for part in made for item in part]

    monkeypatch.setattr(tidy, "_without_special_cases", without)
    with pytest.raises(DiffersError, match=r"'nu': 1\.0"):
        import_optimizer(cls)


def test_numbers_that_a_rule_asks_for_are_settings() -> None:
    subject = find_subject(GuardedInTuple, {})
    rule = find_rule(subject)
    found, num_wanted = settings_of(subject, rule)
    wanted = found[:num_wanted]

    assert set(compared_numbers(rule.items)) == {("nus[1]", 1), ("power", 2)}
    assert {"nus": (0.7, 1.0)} in wanted
    assert {"power": 2} in wanted
    assert [each["is_on"] for each in wanted if each.keys() == {"is_on"}] == [False]
