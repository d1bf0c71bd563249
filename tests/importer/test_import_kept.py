"""Test that no class is imported wrongly which keeps numbers, counts or tensors in odd places."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen.importer import NotImportedError, import_optimizer


class Base(torch.optim.Optimizer):
    """An optimizer whose rule is its method `update`."""

    def __init__(self, params: Any, lr: float = 0.1, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p], group)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        raise NotImplementedError


class LeastInSelf(Base):
    """The least rate so far, which no proof sees whose schedule only goes down."""

    least: Any = None

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        self.least = group["lr"] if self.least is None else min(self.least, group["lr"])
        p.add_(grad, alpha=-self.least)


class LeastInGroup(Base):
    """The least rate so far, under another key of the group."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        group["least"] = min(group.get("least", group["lr"]), group["lr"])
        p.add_(grad, alpha=-group["least"])


class LeastInState(Base):
    """The least rate so far, in a state: the rule has the state."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["rate"] = group["lr"]
        state["rate"] = min(state["rate"], group["lr"])
        p.add_(grad, alpha=-state["rate"])


class BeforeInSelf(Base):
    """The rate of the step before, which counts if it was the smaller one."""

    before: Any = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.before = self.param_groups[0]["lr"]

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        rate = group["lr"]
        if self.before is not None and self.before < rate:
            rate = self.before
        p.add_(grad, alpha=-rate)


class StillAtFirst(Base):
    """An answer of the constructor about a rate of 0, which is warmed up later."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.is_still = lr == 0

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-0.01 if self.is_still else -group["lr"])


class FirstGroup(Base):
    """All groups step with the first one's rate."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-self.param_groups[0]["lr"])


class CountedInSelf(Base):
    """The optimizer counts its steps, and asks late."""

    calls = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        super().step(closure)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-group["lr"] if self.calls < 50 else -0.5 * group["lr"])


class WarmedUpBySelf(CountedInSelf):
    """The count, which no state dict has, is asked in each of the first ten steps."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-group["lr"] * min(1.0, self.calls / 10))


class ListOfDecays(Base):
    """The default is a list, which the groups of a user replace."""

    def __init__(self, params: Any, decays: Any = [0.9, 0.99]) -> None:  # noqa: B006
        torch.optim.Optimizer.__init__(self, params, {"decays": decays})

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.mul_(group["decays"][0]).add_(grad, alpha=-group["decays"][1])


class CountedByTensor(CountedInSelf):
    """The count is a tensor."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.calls = torch.zeros(1)  # type: ignore[assignment]


class CountedOnParameter(Base):
    """The parameter itself has a count, which is asked after the proof's last step."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.calls = getattr(p, "calls", 0) + 1
        p.add_(grad, alpha=-group["lr"] if p.calls < 500 else -0.5 * group["lr"])


class CountedByLength(CountedOnParameter):
    """The length of a list is a count."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state.setdefault("history", []).append(1)
        p.add_(grad, alpha=-group["lr"] if len(state["history"]) < 500 else -0.5 * group["lr"])


class CountedByGroup(Base):
    """The group counts the steps, those without a gradient of the parameter too."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        super().step(closure)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-group["lr"] / group["step"])


class LateSign(Base):
    """A sign of a sum that counts after step 40."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["step"] = state.get("step", 0) + 1
        rate = group["lr"]
        if state["step"] > 40 and grad.sum() > 0:
            rate = rate * 0.5
        p.add_(grad, alpha=-rate)


class Renewed(Base):
    """A state that is another tensor as of each tenth step."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["step"] = state.get("step", 0) + 1
        if state["step"] % 10 == 1:
            state["anchor"] = p.clone()
        p.add_(grad + 0.1 * (p - state["anchor"]), alpha=-group["lr"])


class ReadByView(Base):
    """A view that the step takes before the update, and reads after it."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        flat, before = p.view(-1), p.clone()
        p.add_(grad, alpha=-group["lr"])
        p.sub_(flat.view_as(p) * group["decay"] + 0.01 * before)


class Aliased(Base):
    """Two keys of one tensor."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["a"] = state["b"] = torch.zeros_like(p)
        state["a"].mul_(0.9).add_(grad)
        state["b"].mul_(0.5)
        p.add_(state["a"], alpha=-group["lr"])


class OwnTensor(Base):
    """A state that is the parameter itself."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["first"] = p.data
        p.add_(grad + 0.1 * (p - state["first"]), alpha=-group["lr"])


class RoundRate(Base):
    """A whole number of the rate, which is 0 with each rate that a proof tries."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-1.0 if int(group["lr"] * 1e-3) > 0 else -group["lr"])


class RoundDecay(Base):
    """A whole number of another argument."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-group["lr"] * (1 + round(group["decay"])))


class ClosureTwice(Base):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            closure()
            closure()
        super().step()

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-group["lr"])


class TimesLoss(ClosureTwice):
    """The rate grows with the loss."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.loss = 1.0 if closure is None else float(closure())
        Base.step(self)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-group["lr"] * self.loss)


class Caught(Base):
    """The class catches the refusal, and goes on."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        try:
            grad = grad + 0 * torch.median(grad)
        except Exception:
            grad = grad.sign()
        p.add_(grad, alpha=-group["lr"])


class NanGuard(Base):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if math.isnan(grad.sum().item()):
            return
        p.add_(grad, alpha=-group["lr"])


class FiniteGuard(Base):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if math.isfinite(grad.sum().item()):
            p.add_(grad, alpha=-group["lr"])


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (LeastInSelf, "a number that an earlier step kept"),
        (LeastInGroup, "a number that an earlier step kept"),
        (BeforeInSelf, "a number that an earlier step kept"),
        (StillAtFirst, "the rule differs"),
        (FirstGroup, "with two groups whose numbers differ"),
        (CountedOnParameter, "steps change `calls` of parameter 0"),
        (CountedByLength, "steps change `history` of"),
        (Aliased, "state `a` is never written"),
        (OwnTensor, ""),
        (RoundRate, "the step makes a whole number or a text of `lr`"),
        (ClosureTwice, "with a closure"),
        (TimesLoss, "with a closure"),
        (Caught, "torch's `median` has no word"),
        (FiniteGuard, "`math.isfinite` of a tensor's number"),
    ],
)
def test_a_class_that_cannot_be_said_is_refused(cls: type, words: str) -> None:
    with pytest.raises(NotImportedError) as caught:
        import_optimizer(cls)

    assert words in str(caught.value)


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (LeastInState, "rate = minimum(rate, lr)"),
        (CountedInSelf, "if t < 50:"),
        (CountedByTensor, "if t < 50:"),
        (LateSign, "if t > 40:"),
        (Renewed, "t % 10 == 1"),
        (ReadByView, "p_before"),
    ],
)
def test_a_class_that_keeps_it_in_a_state_or_a_count_is_proven(cls: type, words: str) -> None:
    assert words in import_optimizer(cls).text


def test_state_dicts_are_not_exchanged_if_they_lack_the_count() -> None:
    imported = import_optimizer(WarmedUpBySelf)

    assert "minimum" in imported.text
    assert not imported.proof.keys


def test_a_list_as_default_is_refused() -> None:
    with pytest.raises(NotImportedError, match="is a list, which steps may change") as caught:
        import_optimizer(ListOfDecays)
    assert "make it a tuple" in str(caught.value)


def test_a_number_that_is_rounded_keeps_its_default() -> None:
    assert "decay" not in import_optimizer(RoundDecay).text


def test_a_group_s_count_goes_on_where_a_parameter_has_no_gradient() -> None:
    assert not import_optimizer(CountedByGroup).proof.gaps


def test_a_guard_against_nan_holds_in_the_rule() -> None:
    imported = import_optimizer(NanGuard)
    results: list[Tensor] = []
    for cls in (NanGuard, imported.optimizer):
        p = torch.nn.Parameter(torch.ones(2))
        optimizer = cls([p])
        for gradient in ([1.0, 2.0], [math.nan, 1.0], [1.0, 0.0]):
            p.grad = torch.tensor(gradient)
            optimizer.step()
        results.append(p.detach())
    assert imported.proof.gaps
    torch.testing.assert_close(*results, rtol=1e-6, atol=0)
