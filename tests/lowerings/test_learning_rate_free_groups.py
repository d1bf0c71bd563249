"""Test Prodigy and D-Adapt Adam over several groups: they step as their authors' packages do.

The authors keep one distance d for all groups. A group whose lr is 0 has no part in the estimate,
and its averages stand still. A step in which no group has a part changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import use_lowering
from optgen.optim import DAdaptAdam, Prodigy

STEPS = 60
BETA1, BETA2, EPS, D0 = 0.9, 0.999, 1e-8, 1e-6
ROOT = math.sqrt(BETA2)
Group = dict[str, Any]


class Reference:
    """The state of a rule in float64: d and its sums, and averages by the parameter's place."""

    def __init__(self) -> None:
        self.k, self.d, self.d_max, self.r = 0, D0, D0, 0.0
        self.averages: dict[int, dict[str, Any]] = {}

    def of(self, place: int, param: Tensor) -> dict[str, Any]:
        """Return a parameter's averages, and the point where it took its first step."""
        start = {"m": 0 * param, "v": 0 * param, "s": 0 * param, "x0": param.clone()}
        return self.averages.setdefault(place, start)

    def bias(self) -> float:
        k = self.k + 1
        return math.sqrt(1 - BETA2**k) / (1 - BETA1**k)

    def prodigy(self, members: list[tuple[int, Tensor, Tensor, Group]], rate: float) -> None:
        """Step the parameters that have a gradient, in place; `rate` is the largest rate."""
        d, step_size, inner, size = self.d, self.d * rate * self.bias(), 0.0, 0.0
        for place, param, grad, group in members:
            own = self.of(place, param)
            if group["lr"] > 0:
                inner += d / D0 * step_size * (grad * (own["x0"] - param)).sum().item()
                own["m"] = BETA1 * own["m"] + (1 - BETA1) * d * grad
                own["v"] = BETA2 * own["v"] + (1 - BETA2) * d**2 * grad**2
                own["s"] = ROOT * own["s"] + d / D0 * step_size * grad
                size += own["s"].abs().sum().item()
        if size == 0:
            return
        self.k, self.r = self.k + 1, ROOT * self.r + inner
        self.d = self.d_max = max(self.d_max, self.r / size)
        for place, param, _, group in members:
            own = self.of(place, param)
            param -= group["weight_decay"] * step_size * param
            param -= step_size * own["m"] / (own["v"].sqrt() + self.d * EPS)

    def dadapt(self, members: list[tuple[int, Tensor, Tensor, Group]], rate: float) -> None:
        """Step the parameters that have a gradient, as `prodigy` does."""
        step_size, inner, size = self.d * rate * self.bias(), 0.0, 0.0
        for place, param, grad, group in members:
            own, scale = self.of(place, param), group["layer_scale"]
            if group["lr"] > 0:
                inner += (
                    scale * step_size * (grad * own["s"] / (own["v"].sqrt() + EPS)).sum().item()
                )
                own["m"] = BETA1 * own["m"] + (1 - BETA1) * scale * step_size * grad
                own["v"] = BETA2 * own["v"] + (1 - BETA2) * grad**2
                own["s"] = ROOT * own["s"] + (1 - ROOT) * step_size * grad
                size += scale * own["s"].abs().sum().item()
        if size == 0:
            return
        self.k, self.r = self.k + 1, ROOT * self.r + (1 - ROOT) * inner
        self.d = max(self.d, self.r / ((1 - ROOT) * size))
        for place, param, _, group in members:
            own = self.of(place, param)
            param -= group["weight_decay"] * step_size * param
            param -= own["m"] / (own["v"].sqrt() + EPS)


Change = Callable[[int, list[Group], list[Tensor | None]], None]
"""Changes what a step finds, by its number: the options of the groups, and the gradients."""


def rates(first: Callable[[int], float], second: Callable[[int], float]) -> Change:
    def change(step: int, groups: list[Group], grads: list[Tensor | None]) -> None:
        for group, rate in zip(groups, (first, second), strict=False):
            group["lr"] = rate(step)

    return change


def missing(is_missing: Callable[[int], bool], *places: int) -> Change:
    def change(step: int, groups: list[Group], grads: list[Tensor | None]) -> None:
        for place in places if is_missing(step) else ():
            grads[place] = None

    return change


def zero(step: int, groups: list[Group], grads: list[Tensor | None]) -> None:
    if step < 5:
        grads[:] = [None if grad is None else 0 * grad for grad in grads]


CHANGES: dict[str, Change] = {
    "nothing": lambda step, groups, grads: None,
    "lr 0 at first": rates(lambda step: 1.0, lambda step: float(step >= 20)),
    "lr 0 at first, first group": rates(lambda step: float(step >= 20), lambda step: 1.0),
    "lr 0 now and then": rates(lambda step: 1.0, lambda step: float(step // 7 % 2)),
    "lr 0 everywhere at first": rates(*[lambda step: min(step / 10, 1.0)] * 2),
    "lr 0 at the end": rates(*[lambda step: max(1 - step / 50, 0.0)] * 2),
    "no gradient at first": missing(lambda step: step < 20, 2),
    "no gradient at first, first group": missing(lambda step: step < 20, 0, 1),
    "no gradient at the end": missing(lambda step: step > 30, 2),
    "one gradient is missing": missing(lambda step: step == 5, 2),
    "a parameter misses every third gradient": missing(lambda step: step % 3 == 1, 1),
    "gradients are 0 at first": zero,
}
CASES = [(change, False) for change in CHANGES] + [("a group is added", True)]


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize(("change", "is_added"), CASES, ids=lambda value: str(value))
@pytest.mark.parametrize("cls", [Prodigy, DAdaptAdam])
def test_groups_step_as_in_the_authors_package(
    cls: Any, change: str, is_added: bool, lowering: str
) -> None:
    generator = torch.Generator().manual_seed(1)
    starts = [torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    params, expected = [torch.nn.Parameter(p.clone()) for p in starts], [p.clone() for p in starts]
    scale = {"layer_scale": 0.5} if cls is DAdaptAdam else {}
    late_group = {"params": params[2:], "weight_decay": 0.3, **scale}
    optimizer = cls(
        [{"params": params[:2]}, *([] if is_added else [late_group])],
        weight_decay=0.1,
        use_bias_correction=True,
        **({"decouple": True} if cls is DAdaptAdam else {}),
    )
    reference = Reference()
    take_step = reference.prodigy if cls is Prodigy else reference.dadapt
    for step in range(STEPS):
        if is_added and step == 20:
            optimizer.add_param_group(late_group)
        groups: list[Group] = optimizer.param_groups
        noise = [torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
        grads: list[Tensor | None] = [
            0.1 * x + 0.01 * p.detach() for x, p in zip(noise, params, strict=True)
        ]
        grads[2] = grads[2] if len(groups) == 2 else None
        CHANGES.get(change, CHANGES["nothing"])(step, groups, grads)
        members = [
            (place, expected[place], grad.clone(), groups[place // 2])
            for place, grad in enumerate(grads)
            if grad is not None
        ]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        with use_lowering(lowering):
            optimizer.step()
        take_step(members, rate=max(group["lr"] for group in groups))
        assert [float(group["d"]) for group in groups] == pytest.approx(
            [reference.d] * len(groups), rel=1e-10
        )
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-8, atol=1e-10)
