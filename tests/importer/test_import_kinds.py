"""Test that steps of many kinds are read, each with a class of its own, and proven."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from optgen.importer import NotImportedError, import_optimizer


class Base(torch.optim.Optimizer):
    """An optimizer whose rule is its method `update`."""

    def __init__(self, params: Any, lr: float = 0.1, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                self.update(p, p.grad, self.state[p], group)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        raise NotImplementedError


class QuotientByCount(Base):
    """A mean of all gradients: a float by the count, which Python divides itself."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["mean"] = torch.zeros_like(p)
        state["mean"].lerp_(grad, weight=1.0 / group["count"])
        p.add_(state["mean"].add(0.0), alpha=-group["lr"])


class AskedTwice(Base):
    """A flag that is asked first when states are made, and later inside another branch."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["mean"] = torch.zeros_like(p)
            if group["decay"] > 0:
                state["largest"] = torch.zeros_like(p)
        rate = group["lr"]
        if group["lr"] > 0.09:
            rate = rate / math.sqrt(group["count"])
        mean = state["mean"].mul_(0.9).add_(grad.square())
        if group["decay"] > 0:
            torch.maximum(state["largest"], mean, out=state["largest"])
            mean = state["largest"]
        divisor = mean.sqrt()
        if group["lr"] > 0.09:
            divisor.add_(0.1)
        else:
            divisor.div_(1.0 - 0.9 ** group["count"]).add_(0.2)
        p.addcdiv_(grad, divisor, value=-rate)


class AskedWhileEmpty(Base):
    """A condition that is asked in each step as long as no state is made."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state and group["decay"] > 0:
            state["mean"] = torch.zeros_like(p)
        if group["lr"] > 0.09:
            grad = grad + 0.1 * p
        if group["decay"] > 0:
            grad = state["mean"].mul_(group["decay"]).add_(grad)
        p.add_(grad, alpha=-group["lr"])


class SumOfWeights(Base):
    """A sum that grows by 1 with the default arguments, and is no count."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["total"] = state.get("total", 0.0) + group["count"] ** group["decay"]
        p.add_(grad, alpha=-group["lr"] / state["total"])


class Repeats(Base):
    """An argument that is the length of a loop; it keeps its default."""

    def __init__(self, params: Any, lr: float = 0.1, repeats: int = 2) -> None:
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, "repeats": repeats})

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        for _ in range(group["repeats"]):
            grad = grad * 0.5 + 0.1 * p
        p.add_(grad, alpha=-group["lr"])


class Normalized(Base):
    """Functions that are made of simpler ones, numbers of rows, a variance, Python's max."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        update = functional.normalize(grad, dim=0)
        if p.ndim > 1:
            update = update + torch.nan_to_num(grad / (grad.std(correction=0) + 0.1), nan=0.0)
            update.mul_(functional.cosine_similarity(grad, p, dim=1)[:, None])
        scale = max(grad.norm(), group["decay"]) / math.sqrt(grad.square().mean() + 1.0)
        p.sub_(update * scale, alpha=group["lr"])


class Turned(Base):
    """Products of a matrix or its transpose in bfloat16, for the group that says `use_muon`."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        for group in params:
            if "use_muon" not in group:
                raise ValueError("say `use_muon`")
        torch.optim.Optimizer.__init__(self, params, {"lr": lr})

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not group["use_muon"]:
            p.add_(grad, alpha=-group["lr"])
            return
        is_tall = grad.size(0) > grad.size(1)
        x = (grad.mT if is_tall else grad).bfloat16()
        x = x / (x.norm() + 1e-7)
        gram = torch.empty(x.size(0), x.size(0), dtype=x.dtype)
        torch.mm(x, x.mT, out=gram)
        x = torch.addmm(x, gram, x, beta=1.5, alpha=-0.5)
        p.add_((x.mT if is_tall else x).to(p.dtype), alpha=-group["lr"])


class Clipped(Base):
    """The norm of all gradients, in a branch."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            scale: Any = 1.0
            decay = self.param_groups[0]["decay"]
            if decay > 0:
                norms = [p.grad.norm() for group in self.param_groups for p in group["params"]]
                scale = (decay / torch.stack(norms).square().sum().sqrt()).clamp(max=1)
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad * scale, alpha=-group["lr"])


class ClippedByGroup(Base):
    """The norm of the gradients of one group, which the import takes for the norm of all."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
                for p in group["params"]:
                    p.add_(p.grad / (norm + 1.0), alpha=-group["lr"])


def test_a_norm_of_one_group_is_not_taken_for_a_norm_of_all() -> None:
    with pytest.raises(NotImportedError, match="differs from the original"):
        import_optimizer(ClippedByGroup)


class NestedTensorBranches(Base):
    """A branch on a tensor in another one, with another number on each side."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        ratio = 1.0
        if grad.norm() < 1.0:
            ratio = group["decay"]
            if group["lr"] > 0.09:
                grad = grad * 2.0
        elif grad.norm() < 3.0:
            ratio = 0.25
        p.add_(grad, alpha=-group["lr"])
        p.mul_(1.0 - 0.1 * ratio)


class NumberOrTensor(Base):
    """A divisor that is a number in the first step and a tensor later, and a state of a number."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["v"] = torch.full_like(p, 2.0 * group["lr"])
        if self.number == 1:
            divisor = torch.full_like(p, group["lr"] / (group["lr"] + 1.0))
        else:
            divisor = state["v"] / 2.0
        state["v"].mul_(0.9).addcmul_(grad, grad)
        p.sub_(group["lr"] * grad / (divisor + 1.0))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["number"] = group.get("number", 0) + 1
            self.number = group["number"]
        super().step()


class NumberOfGroup(torch.optim.Optimizer):
    """A number of the group that is None at first, and later comes from all of its parameters."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "scale": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            total, count = 0.0, 0.0
            for p in group["params"]:
                if group["scale"] is not None:
                    p.add_(p.grad, alpha=-group["lr"] * group["scale"])
                root = p.grad.abs() + 0.1
                total += root.norm(-2) ** -2
                count += root.numel()
            group["scale"] = 0.0 if count == 0.0 else 1.0 / math.sqrt(total / count)


class TwoTuples(Base):
    """Two tuples, and the name of one ends with the other's name."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.8),
        slow_betas: tuple[float, float] = (0.95, 0.7),
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "slow_betas": slow_betas}
        torch.optim.Optimizer.__init__(self, params, defaults)

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["m"] = torch.zeros_like(p)
        pair = group["betas"] if p.ndim > 1 else group["slow_betas"]
        state["m"].mul_(pair[0]).add_(grad)
        p.sub_(group["lr"] * (pair[1] * state["m"] + grad))


KINDS = [
    QuotientByCount,
    AskedTwice,
    AskedWhileEmpty,
    SumOfWeights,
    Repeats,
    Normalized,
    Turned,
    Clipped,
    NestedTensorBranches,
    NumberOrTensor,
    NumberOfGroup,
    TwoTuples,
]


@pytest.mark.one_case_in(9)
@pytest.mark.parametrize("cls", KINDS)
def test_a_step_of_this_kind_is_proven(cls: type) -> None:
    proof = import_optimizer(cls).proof

    assert proof.num_settings >= 4
    assert proof.rounding == ("bfloat16" if cls is Turned else "")


class PartRead(Base):
    """A rule that reads a part of a tensor."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad, alpha=-group["lr"] * grad.reshape(-1)[0])


class Joined(Base):
    """A rule that joins tensors."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(torch.cat([grad, grad]).sum(), alpha=-group["lr"])


class Signed(Base):
    """A rule with the largest element of numbers that have a sign."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.add_(grad * grad.max(), alpha=-group["lr"])


class GlobalState(Base):
    """A rule with a state that belongs to no parameter."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        self.state["seen"] = True
        p.add_(grad, alpha=-group["lr"])


class TensorOfGroup(Base):
    """A tensor that the group keeps, and that steps change in place."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        group.setdefault("largest", torch.zeros(1, dtype=p.dtype)).add_(grad.norm())
        p.add_(grad, alpha=-group["lr"] / (1.0 + float(group["largest"])))


class ListOfTensors(Base):
    """A rule with a list of tensors as a state."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state.setdefault("means", [torch.zeros_like(p)])
        p.add_(state["means"][0].add_(grad), alpha=-group["lr"])


class NumberOfNone(Base):
    """A rule whose group has a number from the first step on, which each parameter overwrites."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, "scale": None})

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if group["scale"] is not None:
            p.add_(grad, alpha=-group["lr"] * group["scale"])
        group["scale"] = 1.0 / (1.0 + p.norm().item())


class TwoSteps(Base):
    """A rule that differs: each other step does nothing, and no state says so."""

    calls = 0

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        self.calls += 1
        p.add_(grad, alpha=-group["lr"] if self.calls % 2 else -0.5 * group["lr"])


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (TensorOfGroup, "a tensor that the group keeps, which an import reads as a number"),
        (ListOfTensors, "a tensor of unknown origin\n  hint: keep it in self.state[p]"),
        (NumberOfNone, "the rule differs from the original: parameter"),
        (TwoSteps, "steps change `calls` of self, which a rule has no word for\n  hint: keep it"),
        (PartRead, "a part of a tensor is read\n  hint: compute with whole tensors"),
        (Joined, "tensors are joined\n  hint:"),
        (Signed, "the largest element of numbers with a sign\n  hint:"),
        (GlobalState, "states that belong to no parameter\n  hint:"),
    ],
)
def test_a_refusal_has_a_way_out(cls: type, words: str) -> None:
    with pytest.raises(NotImportedError) as caught:
        import_optimizer(cls)

    assert words in str(caught.value)
    assert caught.value.place[0] == __file__
    assert caught.value.place[1] > 1


class NesterovNeedsMomentum(torch.optim.Optimizer):
    """A constructor that refuses a flag alone, in a class that asks for it in another branch."""

    def __init__(
        self, params: Any, lr: float = 0.1, momentum: float = 0.0, nesterov: bool = False
    ) -> None:
        if momentum < 0.0:
            raise ValueError(momentum)
        if nesterov and momentum <= 0:
            raise ValueError("nesterov needs a momentum")
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                if group["momentum"] != 0:
                    if "mean" not in state:
                        state["mean"] = torch.clone(grad).detach()
                    else:
                        state["mean"].mul_(group["momentum"]).add_(grad)
                    if group["nesterov"]:
                        grad = grad.add(state["mean"], alpha=group["momentum"])
                    else:
                        grad = state["mean"]
                p.add_(grad, alpha=-group["lr"])


class NesterovEverywhere(NesterovNeedsMomentum):
    """A step that asks for the flag alone, with this constructor."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(p)
                state["mean"].mul_(group["momentum"]).add_(grad)
                if group["nesterov"]:
                    p.add_(grad, alpha=-group["lr"])
                p.add_(state["mean"], alpha=-group["lr"])


@pytest.mark.parametrize("cls", [NesterovNeedsMomentum, NesterovEverywhere])
def test_a_flag_that_the_constructor_takes_with_another_argument_is_read(cls: type) -> None:
    made = import_optimizer(cls)

    assert "nesterov=flag(False)" in made.text
    assert made.proof.keys
    assert "_before" not in made.text
    assert made.proof.num_settings >= 8


class ClonedThenChanged(Base):
    """A copy of the gradient that is read after the variable of the gradient has changed."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if group["decay"] != 0:
            grad = grad.add(p, alpha=group["decay"])
        raw = torch.clone(grad)
        if group["lr"] <= 0.09:
            grad = grad.sign()
            grad = grad * (raw.square() > 0.1) + raw
        p.add_(grad, alpha=-group["lr"])


def test_a_copy_of_the_gradient_keeps_its_value() -> None:
    assert import_optimizer(ClonedThenChanged).proof.largest <= 1e-12


class LeastOfDtype(Base):
    """A divisor that the dtype's eps bounds from below."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        eps = torch.finfo(grad.dtype).eps
        p.sub_(grad / grad.abs().clamp(min=eps), alpha=group["lr"])


class TinyOfDtype(Base):
    """A divisor that the dtype's smallest number bounds from below."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.sub_(grad / grad.abs().clamp(min=torch.finfo(p.dtype).tiny), alpha=group["lr"])


class RoundedByHand(Base):
    """A number of the dtype that nothing records."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        eps = 1e-7 if p.dtype == torch.float32 else 1e-16
        p.sub_(grad / grad.abs().clamp(min=eps), alpha=group["lr"])


def test_the_eps_of_the_parameters_dtype_is_a_word_of_the_language() -> None:
    assert "maximum(abs(grad), machine_eps(p))" in import_optimizer(LeastOfDtype).text


def test_other_numbers_of_a_dtype_are_refused_at_their_line() -> None:
    with pytest.raises(NotImportedError, match="the dtype's `tiny` has no word") as caught:
        import_optimizer(TinyOfDtype)

    assert caught.value.place[0] == __file__


def test_steps_in_float32_are_compared() -> None:
    with pytest.raises(NotImportedError, match="in float32 with gradients of about 1e-06"):
        import_optimizer(RoundedByHand)


class OddSteps(Base):
    """A first step of its own on both sides of a branch on the step count."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if group["count"] % 2 == 1:
            if "mean" not in state:
                state["mean"] = grad.clone()
            state["mean"].lerp_(grad, 0.5)
        else:
            if "mean" not in state:
                state["mean"] = grad.clone()
            state["mean"].mul_(0.9).add_(grad)
        p.add_(state["mean"], alpha=-group["lr"])


def test_a_first_step_does_not_ask_for_the_step_count() -> None:
    text = import_optimizer(OddSteps).text

    assert text.count("t % 2") == 1
    assert text.count("fresh(m)") == 1


class NotExchangedWithState(NesterovNeedsMomentum):
    """A rule whose state dict is refused by its own class if it holds a state."""

    def load_state_dict(self, state_dict: Any) -> None:
        if state_dict["state"]:
            raise ValueError("no states")


def test_state_dicts_are_exchanged_with_all_states() -> None:
    with pytest.raises(NotImportedError, match="exchanged: ValueError: no states"):
        import_optimizer(NotExchangedWithState)
