"""Test that optimizer classes become specs, and that refusals name the place and the reason."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import pytest
import torch

import optgen
from optgen import jit, modifiers
from optgen.importer import Imported, NotImportedError, import_optimizer


class Base(torch.optim.Optimizer):
    """An optimizer whose rule is its method `update`."""

    def __init__(self, params: Any, lr: float = 0.1, decay: float = 0.0) -> None:
        if not 0.0 <= lr:
            raise ValueError(lr)
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, self.state[p], group)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        raise NotImplementedError


class Counted(Base):
    """A rule with a branch on an argument, one on the step count, and an integer's power."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(p)
        state["step"] += 1
        step = state["step"]
        if group["decay"] != 0:
            grad = grad.add(p, alpha=group["decay"])
        mean = state["mean"]
        if step > 3:
            mean.mul_(0.9).add_(grad, alpha=0.1)
        else:
            mean.copy_(grad)
        p.sub_(mean * group["lr"] / (step**0.25 + math.sqrt(step)))


class BranchOnTensor(Base):
    """A rule with a branch on the gradient."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if grad.norm() > 1:
            grad = grad / grad.norm()
        p.add_(grad, alpha=-group["lr"])


class Random(Base):
    """A rule that draws from torch's generator."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.sub_(group["lr"] * torch.randn_like(p))


class Hidden(Base):
    """A rule with an argument that the record loses."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-float(str(float(group["lr"]))))


@functools.cache
def adamw() -> Imported:
    return import_optimizer(torch.optim.AdamW)


@functools.cache
def counted() -> Imported:
    return import_optimizer(Counted)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SGD", "Rprop", "Adadelta", "Adagrad", "RMSprop", "NAdam"])
def test_a_class_is_imported_and_proven(name: str) -> None:
    made = import_optimizer(getattr(torch.optim, name))

    assert made.proof.largest <= 1e-12
    assert made.proof.num_settings >= 8
    assert made.proof.keys


def test_a_class_with_two_arguments_has_eight_settings() -> None:
    assert counted().proof.num_settings >= 8


def test_adamw_is_written_as_a_person_would() -> None:
    text = adamw().text

    assert "    exp_avg = lerp(exp_avg, grad, 1 - beta1)\n" in text
    assert "    p = p - lr * weight_decay * p\n" in text
    assert "    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad**2\n" in text
    largest = "max_exp_avg_sq = maximum(max_exp_avg_sq, exp_avg_sq)"
    assert f"    if amsgrad:\n        {largest}\n" in text
    assert "Divide by the largest second moment so far, not by the present one" in text
    assert 'betas=hyper((0.9, 0.999), ge=0, lt=1, tensor="number"),' in text


def test_state_dicts_of_adamw_are_exchanged() -> None:
    assert adamw().proof.keys


def test_an_integer_is_recorded() -> None:
    text = counted().text

    assert "t**0.25 + sqrt(t)" in text
    assert "if t > 3:" in text or "if t <= 3:" in text


@pytest.mark.parametrize(
    "modifier",
    [modifiers.clip_norm(1.0), modifiers.ema(0.9), modifiers.quantized(min_elements=1)],
    ids=["clip_norm", "ema", "quantized"],
)
def test_an_imported_class_is_composed_as_the_catalogue_s(modifier: Any) -> None:
    courses = []
    for base in (adamw().optimizer, optgen.optim.AdamW):
        generator = torch.Generator().manual_seed(0)
        p = torch.nn.Parameter(torch.randn(20, 30, dtype=torch.float64, generator=generator))
        optimizer = optgen.compose(base, modifier)([p], lr=0.01)
        for _ in range(4):
            p.grad = torch.randn(20, 30, dtype=torch.float64, generator=generator)
            optimizer.step()
        states = {k: getattr(x, "dtype", type(x)) for k, x in optimizer.state[p].items()}
        courses.append((p.detach(), states))
    (ours, our_states), (theirs, their_states) = courses

    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert our_states == their_states


@pytest.mark.thorough
def test_an_argument_can_be_fixed() -> None:
    text = import_optimizer(torch.optim.AdamW, amsgrad=True).text

    assert "amsgrad" not in text
    assert "max_exp_avg_sq = maximum(max_exp_avg_sq, exp_avg_sq)" in text


def test_a_branch_on_a_tensor_is_a_where() -> None:
    assert "where(" in import_optimizer(BranchOnTensor).text


def test_random_numbers_are_refused_at_the_author_s_line() -> None:
    with pytest.raises(NotImportedError, match="randn_like") as caught:
        import_optimizer(Random)

    assert caught.value.place[0] == __file__


def test_a_number_that_is_not_recorded_is_found_by_the_proof() -> None:
    with pytest.raises(NotImportedError, match="differs from the original"):
        import_optimizer(Hidden)


def test_the_package_has_the_function() -> None:
    assert optgen.import_optimizer is import_optimizer


class OtherName(Base):
    """A rule whose variable is another name of an argument, or computed, and is asked later."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        rate = group["lr"]
        if group["decay"] != 0:
            rate = group["lr"] * 2
        rate = rate * 0.5
        if rate > 0.2:
            grad = grad.sign()
        p.add_(grad, alpha=-rate)
        if rate > 0.2:
            p.mul_(0.5)


class OldOrder(Base):
    """A rule in the order of arguments that older versions of torch had."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.addcdiv_(-group["lr"], grad, grad.abs() + 1)


@pytest.mark.filterwarnings("ignore:This overload")
def test_the_old_order_of_arguments_is_read() -> None:
    assert "p = p - lr * grad / (abs(grad) + 1)" in import_optimizer(OldOrder).text


class Empty(Base):
    """A rule that changes nothing."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.grad = None


def test_a_variable_that_is_computed_in_some_runs_only_is_asked() -> None:
    assert "0.2" in import_optimizer(OtherName).text


def test_a_step_without_effect_is_refused() -> None:
    with pytest.raises(NotImportedError, match="changes no parameter"):
        import_optimizer(Empty)


class Unread(Base):
    """A rule with a state that nothing reads."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["last"] = torch.ones_like(p)
        p.add_(grad, alpha=-group["lr"])


class Unseen:
    """A count where no import looks for one."""

    seen = 0


class FailsLate(Base):
    """A rule that fails after a hundred updates."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["seen"] = torch.zeros_like(p) if "seen" not in state else state["seen"]
        state["seen"].add_(1.0)
        count = group.setdefault("steps", Unseen())
        count.seen += 1
        if count.seen == 100:
            raise ValueError("a hundred steps are enough")
        p.add_(state["seen"] * grad, alpha=-group["lr"])


class TinyDifference(Base):
    """A rule that adds a number which the record loses, and which is small."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["mean"] = torch.zeros_like(p)
        state["mean"].copy_(grad * 1e-12 * (1 + float(str(float(group["lr"])))))
        p.add_(state["mean"], alpha=-group["lr"])


class NotExchanged(Base):
    """A rule whose state dict is refused by its own class."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["mean"] = torch.zeros_like(p)
        state["mean"].lerp_(grad, 0.1)
        p.add_(state["mean"], alpha=-group["lr"])

    def load_state_dict(self, state_dict: Any) -> None:
        raise ValueError("no state dicts")


def test_a_state_that_no_step_reads_is_left_out_and_named() -> None:
    imported = import_optimizer(Unread)
    assert imported.proof.left_out == ("last",)
    assert "# The original also keeps last, which no step reads." in imported.text
    assert imported.proof.keys


class FoundLate(Base):
    """A rule with a state that only its fifth step makes."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        count = state.setdefault("count", Unseen())
        count.seen += 1
        if count.seen == 5:
            state["late"] = torch.ones_like(p)
        p.add_(grad, alpha=-group["lr"])


def test_a_state_that_the_rule_lacks_is_refused() -> None:
    with pytest.raises(NotImportedError, match=r"the state late of number 0.* the rule lacks"):
        import_optimizer(FoundLate)


def test_a_step_that_fails_in_the_proof_is_refused_at_the_author_s_line() -> None:
    with pytest.raises(
        NotImportedError, match=r"in the proof.*a hundred steps are enough"
    ) as caught:
        import_optimizer(FailsLate)

    assert caught.value.place[0] == __file__


def test_small_states_are_compared_by_their_own_magnitude() -> None:
    with pytest.raises(NotImportedError, match="differs from the original: state mean"):
        import_optimizer(TinyDifference)


def test_state_dicts_that_cannot_be_exchanged_are_refused() -> None:
    with pytest.raises(NotImportedError, match="exchanged: ValueError: no state dicts"):
        import_optimizer(NotExchanged)


def test_an_error_of_our_own_is_called_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load", functools.partial(operator.getitem, ()))

    with pytest.raises(NotImportedError, match="a defect of optgen: the import of Unread ends in"):
        import_optimizer(Unread)
