"""Test the import of numbers beside a parameter's own: kept ones, sums, counts, names, shapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from optgen.importer import NotImportedError, import_optimizer
from optgen.importer.prove import SHAPES, Difference, own_precision
from optgen.importer.run import find_subject
from optgen.importer.sides import Course
from tests.importer.test_import_kinds import Base


class SummedInLoop(Base):
    """A mean of squares over all parameters, which a loop adds up."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            total, size = torch.zeros((), dtype=torch.float64), 0
            for group in self.param_groups:
                for p in group["params"]:
                    total += p.grad.norm() ** 2 * 2.0
                    size += p.numel()
            mean = total / size
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad / (1.0 + mean), alpha=group["lr"])


class SummedInGroup(Base):
    """A sum over the parameters of a group."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                total = sum(p.grad.abs().sum() for p in group["params"])
                for p in group["params"]:
                    p.sub_(p.grad / (1.0 + total), alpha=group["lr"])


class SummedAlone(Base):
    """A sum that begins with 0, over one parameter."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        total = 0.0
        total += grad.abs().sum()
        p.sub_(grad / (1.0 + total), alpha=group["lr"])


class ForMatrices(Base):
    """A rule with a number per row, for matrices alone, in a class that takes nothing else."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if p.ndim != 2:
            raise ValueError("matrices only")
        if not state:
            state["rows"] = torch.zeros(p.shape[0], 1, dtype=p.dtype)
        state["rows"].lerp_(grad.square().mean(dim=1, keepdim=True), 0.1)
        p.addcdiv_(grad, state["rows"].sqrt() + 0.1, value=-group["lr"])


def test_a_class_may_be_imported_for_matrices_alone() -> None:
    imported = import_optimizer(ForMatrices)
    assert 'require(ndim(p) == 2, "a parameter is no matrix: {shape}")' in imported.text
    assert {len(shape) for shape in imported.proof.shapes} == {2}


class NamedP(Base):
    """An argument with the name that a spec gives to the parameter, which is also a state's key."""

    def __init__(self, params: Any, p: float = 0.1, decay: float = 0.0) -> None:
        torch.optim.Optimizer.__init__(self, params, {"p": p, "decay": decay})

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["decay"] = torch.zeros_like(p)
        state["decay"].lerp_(grad, 0.1)
        p.add_(state["decay"] + group["decay"] * p, alpha=-group["p"])


def test_an_argument_may_have_the_name_of_a_parameter_and_of_a_state() -> None:
    imported = import_optimizer(NamedP)
    assert "w = w - p * (decay_state + decay * w)" in imported.text
    assert not imported.proof.keys


class CountedForAll(Base):
    """A count of steps that belongs to no parameter, and a float that Python's float makes."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        counts: Any = self.state
        if "count" not in counts:
            counts["count"] = torch.zeros(1, dtype=torch.long)
        with torch.no_grad():
            for group in self.param_groups:
                rate = float(group["lr"]) / math.pow(counts["count"] + 1, 0.5)
                for p in group["params"]:
                    p.add_(p.grad, alpha=-rate)
            counts["count"].add_(1)


def test_a_count_may_belong_to_no_parameter() -> None:
    imported = import_optimizer(CountedForAll)
    assert "lr / sqrt(t)" in imported.text
    assert not imported.proof.keys


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (SummedInLoop, 'mean(2 * g**2, over="all")'),
        (SummedInGroup, 'sum(abs(g), over="group")'),
        (SummedAlone, "sum(abs(grad)) + 1"),
    ],
)
def test_the_proof_decides_what_a_sum_that_begins_with_0_goes_over(cls: type, words: str) -> None:
    assert words in import_optimizer(cls).text


class KeptByConstructor(Base):
    """A rate that the constructor keeps outside the groups, as a bound that grows with lr."""

    def __init__(self, params: Any, lr: float = 0.1, decay: float = 0.0) -> None:
        super().__init__(params, lr, decay)
        self.first_rates = [group["lr"] for group in self.param_groups]

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        final = 0.1 * group["lr"] / self.first_rates[0]
        p.add_(grad.clamp(-final, final), alpha=-group["lr"])


class KeptInStep(Base):
    """A rate that the first step keeps, where nothing records."""

    rate: Any = None

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        self.rate = self.rate or group["lr"]
        p.add_(grad, alpha=-self.rate)


def test_a_number_that_is_read_both_ways_has_an_argument_for_the_constructor_s() -> None:
    imported = import_optimizer(KeptByConstructor)
    assert "0.1 * lr / kept_lr" in imported.text
    p = torch.nn.Parameter(torch.zeros(3))
    made = [imported.optimizer([p], lr=0.2), imported.optimizer([p], lr=0.2, first_lr=0.4)]
    for each, expected in zip(made, (-0.02, -0.01), strict=True):
        p.data.zero_()
        p.grad = torch.ones(3)
        each.step()
        torch.testing.assert_close(p.data, torch.full((3,), expected), rtol=1e-6, atol=0)


class KeptRate(KeptByConstructor):
    """A rate that no step reads in the group."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-self.first_rates[0])


def test_a_rate_that_only_the_constructor_keeps_is_refused_at_its_line() -> None:
    with pytest.raises(NotImportedError, match=r"`lr` that the constructor got") as caught:
        import_optimizer(KeptRate)

    assert caught.value.place[0] == __file__
    assert 'read group["lr"]' in caught.value.hint


def test_a_rate_that_a_step_keeps_is_refused() -> None:
    with pytest.raises(NotImportedError, match="a number that an earlier step kept"):
        import_optimizer(KeptInStep)


class KeptAlone(Base):
    """A number that the steps read only as the constructor kept it."""

    def __init__(self, params: Any, lr: float = 0.1, decay: float = 0.1) -> None:
        super().__init__(params, lr, decay)
        self.decay = decay

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad + self.decay * p, alpha=-group["lr"])


class KeptAndRenewed(KeptAlone):
    """A number that one place reads as the constructor kept it, and another one in the group."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad + self.decay * p, alpha=-group["lr"])
        p.mul_(1.0 - 0.1 * group["decay"])


def test_a_number_that_only_the_constructor_s_copy_is_read_of_is_an_argument() -> None:
    assert "grad + decay * p" in import_optimizer(KeptAlone).text
    assert "grad + kept_decay * p" in import_optimizer(KeptAndRenewed).text


class Aligned(Base):
    """A sum that goes through 0, after AdaTAM of pytorch_optimizer."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state.update({key: torch.zeros_like(p) for key in ("m", "v", "share")})
        state["share"].lerp_(state["m"].sign() * grad.sign(), 0.1)
        state["m"].mul_(0.9).add_(((1 + state["share"]) / 2 + 1e-8) * grad)
        state["v"].mul_(0.999).addcmul_(grad, grad, value=0.001)
        p.addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-group["lr"])


@pytest.mark.parametrize("step", [18, 24, 30])
def test_the_precision_of_a_single_number_is_that_of_its_sums(step: int) -> None:
    """The parameter has lost the rounding of its first value in these steps."""
    subject, what = find_subject(Aligned, {}), "state m of number 4, ()"
    shapes = [shape for shape in SHAPES if len(shape) < 3]
    at = Difference({"lr": 0.0007}, "m", what, step, 1e-10)

    assert 2**-52 <= own_precision(subject, shapes, at, Course({16: 1.0})) <= 1e-12
