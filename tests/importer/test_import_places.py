"""Test that a refusal names the author's line, also where none of the author's code runs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from optgen.importer import NotImportedError, explore, import_optimizer
from optgen.importer.places import line_of_argument, line_that_sets


class Base(torch.optim.Optimizer):
    """An optimizer whose rule is its method `update`. The lines to be named end with `# here`."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, self.state[p], group)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.sub_(group["lr"] * grad)


class WithoutDefault(Base):
    """An argument has no default."""

    def __init__(
        self,
        params: Any,
        lr: float,  # here
    ) -> None:
        super().__init__(params, lr)


class WithList(Base):
    """An argument is a list by default."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        betas: list[float] = [0.9],  # here  # noqa: B006
    ) -> None:
        super().__init__(params, lr)


class ChangesArgument(Base):
    """Steps change a number that the constructor gives to the group."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        group["lr"] *= 0.99  # here
        p.sub_(group["lr"] * grad)


class ChangesAttribute(Base):
    """Steps change an attribute that counts nothing."""

    rate = 1.0

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        self.rate = 0.5 * self.rate  # here
        p.sub_(group["lr"] * self.rate * grad)


class KeepsAlone(Base):
    """A number belongs to no parameter."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        self.state["seen"] = 2 * self.state.get("seen", 1)  # here
        p.sub_(group["lr"] * grad / self.state["seen"])


class KeyIsNoName(Base):
    """A state's key is no name."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["the mean"] = torch.zeros_like(p)  # here
        state["the mean"].mul_(0.9).add_(grad)
        p.sub_(group["lr"] * state["the mean"])


class OddShape(Base):
    """A state has a shape that the language lacks."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["pair"] = torch.zeros(2, dtype=p.dtype)  # here
        state["pair"].add_(1.0)
        p.sub_(group["lr"] * grad * state["pair"].sum())


class ManyPaths(Base):
    """The step asks more than a bound of the test."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        factor = 1.0
        for power in range(1, 9):
            if group["lr"] > 0.1**power:  # here
                factor = factor / 2 + power
        p.sub_(group["lr"] * factor * grad)


def marked_line(cls: type) -> int:
    """Return the line of a class that ends with `# here`."""
    lines, first = inspect.getsourcelines(cls)
    return first + next(n for n, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (WithoutDefault, "no default"),
        (WithList, "is a list"),
        (ChangesArgument, "steps change an argument"),
        (ChangesAttribute, "steps change `rate`"),
        (KeepsAlone, "belong to no parameter"),
        (KeyIsNoName, "which is no name"),
        (OddShape, "the state 'pair' has the shape"),
        (ManyPaths, "more than 3 paths"),
    ],
)
def test_a_refusal_names_the_line(cls: type, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if cls is ManyPaths:
        monkeypatch.setattr(explore, "MAX_RUNS", 3)
    with pytest.raises(NotImportedError, match=reason) as caught:
        import_optimizer(cls)

    assert caught.value.place == (__file__, marked_line(cls))
    assert caught.value.hint


class ReadsBefore(Base):
    """Another function has an argument of the name before the constructor has one."""

    def scaled(self, x: Any, lr: float) -> Any:
        return x * lr

    def __init__(
        self,
        params: Any,
        lr: float,  # here
    ) -> None:
        super().__init__(params, lr)


class SetsTwice(Base):
    """The first line that sets a key stands deeper than the second one."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        for _ in range(1):
            if not state:
                state["mean"] = torch.zeros_like(p)  # here
        state["mean"] = 0.9 * state["mean"] + grad


def test_the_line_of_an_argument_is_in_the_constructor() -> None:
    assert line_of_argument(ReadsBefore, "lr") == (__file__, marked_line(ReadsBefore))
    assert line_of_argument(ReadsBefore, "x") == ("", 0)
    assert line_of_argument(SetsTwice, "lr")[1] < marked_line(SetsTwice)


def test_the_line_that_sets_a_key_is_the_first_in_the_text() -> None:
    assert line_that_sets(SetsTwice, "mean") == (__file__, marked_line(SetsTwice))
