"""Train parameters with a view, and beside them parameters that have the view's shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from interpreter import INTERPRETED
from lowerings.phased_rules import RAGGED
from spec_files import spec_file
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.keyed import RowWiseAdagrad
from optgen.optim import Adafactor, AdamW, Muon
from optgen.spec import Spec

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "HeadMuon": {},
    "Adafactor": {"weight_decay": 0.1, "maximize": True},
    "Muon": {},
    "CAME": {"lr": 0.01},
    "LAMB": {"lr": 0.02},
    "RowWiseAdagrad": {"weight_decay": 0.1},
    "Ragged": {},
}
MATRIX_RULES = ("Muon", "CAME", "RowWiseAdagrad")  # rules that take matrices only
STEPS = 4
_PAPER = '@optimizer(paper="https://example.org")'


@cache
def class_named(name: str) -> Any:
    """Return the class of this name, from this package or from a spec of the tests."""
    for cls in (Adafactor, Muon, RowWiseAdagrad, AdamW):
        if cls.__name__ == name:
            return cls
    if name == "Ragged":
        return optgen.load(Spec(name, RAGGED.replace("@optimizer()", _PAPER), "<ragged>", 1))
    return optgen.load(spec_file("head_muon" if name == "HeadMuon" else name.lower()))


Layout = Callable[[Tensor], Tensor]


def unchanged(tensor: Tensor) -> Tensor:
    return tensor


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def last_axes_transposed(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT


def with_gaps(tensor: Tensor) -> Tensor:
    memory = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    return memory[..., ::2].copy_(tensor)


class ViewedAndPlain:
    """Two optimizers: of parameters with a view, and of plain parameters of the view's shape."""

    def __init__(
        self,
        cls: Any,
        options: dict[str, Any],
        shapes: Sequence[tuple[int, ...]],
        view: tuple[int, ...],
        dtype: torch.dtype = torch.float64,
        layouts: tuple[Layout, Layout] = (unchanged, unchanged),
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self._draw = lambda shape: torch.randn(shape, generator=generator, dtype=dtype)
        drawn = [self._draw(shape) for shape in shapes]
        self._view, self._layouts = view, layouts
        self.ours = [Parameter(layouts[0](value.clone())) for value in drawn]
        self.plain = [Parameter(value.reshape(view).clone()) for value in drawn]
        self.optimizer = cls([{"params": self.ours, "view": view}], **options)
        self.reference = cls(self.plain, **options)

    def step(self, lowering: str, missing: int | None = None) -> None:
        """Take a step of both optimizers; the parameter at index `missing` has no gradient."""
        for index, (ours, plain) in enumerate(zip(self.ours, self.plain, strict=True)):
            grad = self._draw(ours.shape)
            ours.grad = None if index == missing else self._layouts[1](grad.clone())
            plain.grad = None if index == missing else grad.reshape(self._view)
        for optimizer in (self.optimizer, self.reference):
            with use_lowering(lowering):
                optimizer.step()

    def check(self, bound: float = 0.0) -> None:
        """Compare parameters and states.

        States of the shape "like" have their parameter's shape, not the view's.
        """
        for ours, plain in zip(self.ours, self.plain, strict=True):
            check_close(ours.detach().reshape(plain.shape), plain.detach(), bound)
            states, expected = self.optimizer.state[ours], self.reference.state[plain]
            assert list(states) == list(expected)
            for state in self.optimizer.rule.states:
                if state.key in states:
                    found, of_plain = states[state.key], expected[state.key]
                    shape = ours.shape if state.shape == "like" else of_plain.shape
                    assert found.dtype == of_plain.dtype
                    assert found.shape == shape
                    check_close(found.reshape(of_plain.shape), of_plain, bound)
            assert states.get("step") == expected.get("step")


def check_close(found: Tensor, expected: Tensor, bound: float) -> None:
    """Check that each error is at most `bound` times the largest element."""
    if bound == 0:
        assert torch.equal(found, expected)
    elif expected.numel():
        assert (found - expected).abs().max() <= bound * expected.abs().max()
