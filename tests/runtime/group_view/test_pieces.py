"""Test that a rule sees each piece of a parameter as a parameter, if the view is a list."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from itertools import compress
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from runtime.group_view.viewed_and_plain import (
    LOWERINGS,
    Layout,
    channels_last,
    check_close,
    class_named,
    last_axes_transposed,
    unchanged,
    with_gaps,
)
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import modifiers, use_lowering
from optgen.optim import Adafactor, AdamW
from optgen.runtime.tensors.quantized import QuantizedTensor, to_numbers
from optgen.spec import Spec

QKV = [(4, 6, -1), (2, 6, -1), (12, -1)]
SIZES = [(4, 6, 8), (2, 6, 8), (12, 8)]
SHAPE = (48, 8)

ODD = '''from optgen.spec import *

@optimizer(paper="https://example.org")
def Odd(
    p, g, t, hz=given("hessian"), loss=given("loss", shape=()), /,
    m=state("mean", when="factored"), s=state("scale", shape="scalar"),
    n=state("size", shape="scalar", init="index"), d=state("norm", shape="scalar"),
    *, lr=hyper(0.1),
):
    """Extra inputs, and states of every kind."""
    s = s + numel(p) / 100 + t
    d = 0.5 * d + norm(g)
    u = g * d * s + hz * loss
    if factored(p):
        m = m / 2 + g
        n = n * 0.5 + rows(p)
        u = u + n * m / (1 + row_norm(m))
    p = p - lr * u
'''
ODD_SIZES = [(5, 10), (10,), (10,), (4, 5, 10)]
RULES: dict[str, dict[str, Any]] = {
    "HeadMuon": {},
    "Adafactor": {"weight_decay": 0.1, "maximize": True},
    "LAMB": {"lr": 0.02},
    "SOAP": {"max_precond_dim": 6},
    "Dion": {"rank": 3},
    "Prodigy": {},
}
"""Rules: a matrix op between sweeps; rows, columns, 2 plans; a norm; square matrices up to a size
that only some pieces have; thin ones with random numbers; several parameters."""


class PiecesAndPlain:
    """Two optimizers: of parameters in pieces, and of a plain parameter for each piece."""

    def __init__(
        self,
        cls: Any,
        options: dict[str, Any],
        view: list[tuple[int, ...]],
        sizes: Sequence[tuple[int, ...]] = SIZES,
        shape: tuple[int, ...] = SHAPE,
        dtype: torch.dtype = torch.float64,
        layouts: tuple[Layout, Layout] = (unchanged, unchanged),
    ) -> None:
        generator = torch.Generator().manual_seed(5)
        self._draw = lambda: torch.randn(shape, generator=generator, dtype=dtype)
        self._sizes, self._layouts = sizes, layouts
        drawn = [self._draw(), self._draw()]
        self.ours = [Parameter(layouts[0](value.clone())) for value in drawn]
        self.plain = [[Parameter(each.clone()) for each in self.cut(value)] for value in drawn]
        self.optimizer = cls([{"params": self.ours, "view": view}], **options)
        self.reference = cls([param for params in self.plain for param in params], **options)

    def cut(self, value: Tensor) -> list[Tensor]:
        """Return the pieces of a tensor of the parameter's shape."""
        parts = value.reshape(-1).split(list(map(prod, self._sizes)))
        return [part.view(size) for part, size in zip(parts, self._sizes, strict=True)]

    def step(self, lowering: str, missing: int | None = None, **inputs: Any) -> None:
        """Take a step of both; the parameter at index `missing` has no gradient."""
        for index, (ours, plain) in enumerate(zip(self.ours, self.plain, strict=True)):
            grad = self._draw()
            ours.grad = None if index == missing else self._layouts[1](grad.clone())
            for param, piece in zip(plain, self.cut(grad), strict=True):
                param.grad = None if index == missing else piece.clone()
        with use_lowering(lowering):
            self.optimizer.step(**inputs)
            self.reference.step(
                **{
                    key: value
                    if isinstance(value, float)
                    else [x for each in value for x in self.cut(each)]
                    for key, value in inputs.items()
                }
            )

    def check(self, bound: float = 0.0) -> None:
        """Compare parameters and states."""
        like = [state.key for state in self.optimizer.rule.states if state.shape == "like"]
        for ours, plain in zip(self.ours, self.plain, strict=True):
            check_close(ours.detach().reshape(-1), joined(plain), bound)
            states = self.optimizer.state[ours]
            expected = [self.reference.state[param] for param in plain]
            assert set(states) == {key for each in expected for key in each}
            for key, value in states.items():
                values = [each[key] for each in expected if key in each]
                if key == "step":
                    assert all(torch.equal(value, each) for each in values)
                    continue
                assert value.shape == (ours.shape if key in like else (value.numel(),))
                pieces = self.cut(to_numbers(value)) if key in like else [value]
                present = [key in each for each in expected] if key in like else [True]
                check_close(joined(list(compress(pieces, present))), joined(values), bound)
                assert value.dtype == values[0].dtype


def joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([to_numbers(tensor.detach()).reshape(-1) for tensor in tensors])


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@pytest.mark.one_case_in(6)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["HeadMuon", "Adafactor"] if INTERPRETED else RULES)
def test_a_step_of_pieces_equals_a_step_of_a_parameter_for_each(name: str, lowering: str) -> None:
    dtypes = [torch.float32] if INTERPRETED else [torch.float64, torch.bfloat16]
    for dtype in dtypes:
        run = PiecesAndPlain(class_named(name), RULES[name], QKV, dtype=dtype)
        for step in range(2 if INTERPRETED else 4):
            run.step(lowering, missing=1 if step == 1 else None)
        run.check()


@cache
def odd_class() -> Any:
    return optgen.load(Spec("Odd", ODD, "<odd>", 1))


@pytest.mark.one_case_in(3)
@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_pieces_have_scalars_of_their_own_and_extra_inputs(lowering: str) -> None:
    """One of the pieces is a vector, which has no mean."""
    run = PiecesAndPlain(odd_class(), {}, [(5, -1), (10,), (-1,), (4, 5, -1)], ODD_SIZES, (30, 9))
    for step in range(3):
        hessian = [torch.full((30, 9), 0.1 * (step + i), dtype=torch.float64) for i in range(2)]
        run.step(lowering, hessian=hessian, loss=0.5 * step)
    run.check()


@pytest.mark.one_case_in(3)
@outside_interpreter
@pytest.mark.parametrize("layouts", [(channels_last, unchanged), (unchanged, with_gaps),
                                     (last_axes_transposed, last_axes_transposed)])  # fmt: skip
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_tensors_without_such_pieces_in_memory_are_copied(
    lowering: str, layouts: tuple[Layout, Layout]
) -> None:
    sizes = [(4, 18), (16, 3, 3), (24,)]
    run = PiecesAndPlain(
        Adafactor, {}, [(4, -1), (16, 3, 3), (24,)], sizes, (10, 3, 4, 2), layouts=layouts
    )
    for _ in range(3):
        run.step(lowering)
    run.check(1e-14)  # torch's sums depend on the alignment of memory
    if layouts[0] is not unchanged:
        assert "of copies" in optgen.explain(run.optimizer)


@pytest.mark.one_case_in(3)
@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_pieces_of_whole_blocks_have_the_codes_of_parameters(lowering: str) -> None:
    quantized = modifiers.quantized(None, momentum_buffer="8bit", block=64, min_elements=1)
    cls = optgen.compose(class_named("HeadMuon"), quantized)
    sizes = [(4, 6, 8), (2, 8, 8), (8, 8)]  # 3 blocks, 2 blocks and one
    run = PiecesAndPlain(cls, {}, [(4, 6, -1), (2, 8, -1), (8, -1)], sizes)
    for _ in range(3):
        run.step(lowering)
    run.check()
    assert type(run.optimizer.state[run.ours[0]]["momentum_buffer"]) is QuantizedTensor


@outside_interpreter
def test_training_goes_on_from_a_checkpoint_of_pieces(tmp_path: Path) -> None:
    """A loaded view replaces that of the group; states of other pieces are refused."""
    run = PiecesAndPlain(Adafactor, {}, QKV)
    run.step("fused_cpu")
    torch.save(run.optimizer.state_dict(), tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = PiecesAndPlain(Adafactor, {}, [(12, -1), (12, -1), (24, -1)])
    other.step("fused_cpu")
    other.optimizer.load_state_dict(loaded)
    assert other.optimizer.param_groups[0]["view"] == QKV
    for ours, param in zip(other.ours, run.ours, strict=True):
        ours.data.copy_(param.data)
        ours.grad = param.grad = torch.ones_like(param)
    run.optimizer.step()
    other.optimizer.step()
    assert all(map(torch.equal, other.ours, run.ours))
    run.optimizer.param_groups[0]["view"] = [(36, -1), (12, -1)]
    before = copy.deepcopy(run.optimizer.state_dict())
    with pytest.raises(RuntimeError, match=r"col_var has the shape .* but the pieces .* have 16"):
        run.optimizer.step()
    assert str(run.optimizer.state_dict()) == str(before)


@outside_interpreter
def test_a_view_may_be_cut_and_joined_between_steps() -> None:
    """Each list is read anew, and no cached step remembers the pieces of an earlier one."""
    param = Parameter(torch.ones(6, 4))
    optimizer = class_named("LAMB")([param], lr=0.1)
    for view in (None, [(2, 4), (4, 4)], [(3, -1), (3, -1)], (24,), [(1, -1), (5, -1)]):
        optimizer.param_groups[0]["view"] = view
        for _ in range(2):
            whole, plain = param.detach().clone(), [param.detach().clone()]
            if isinstance(view, list):
                plain = list(whole.split([size[0] for size in view]))
            reference = class_named("LAMB")([Parameter(each.clone()) for each in plain], lr=0.1)
            param.grad = torch.arange(24.0).view(6, 4).sin()
            grads = param.grad.split([len(each) for each in plain])
            for each, grad in zip(reference.param_groups[0]["params"], grads, strict=True):
                each.grad = grad.clone()
            optimizer.state.clear()
            optimizer.step()
            reference.step()
            assert torch.equal(param.detach(), torch.cat(reference.param_groups[0]["params"]))


REFUSED: dict[str, tuple[Any, str]] = {
    "no piece": ([], "or a list of such tuples, one for each piece"),
    "a size": ([(2, 8), 4], "or a list of such tuples, one for each piece"),
    "a list inside": ([[2, 8]], "or a list of such tuples, one for each piece"),
    "too few elements": ([(40, 8), (7, 8)], "the pieces have 376 elements together, and the"),
    "too many elements": ([(48, 8), (1,)], "the pieces have 385 elements together, and the"),
    "no multiple": ([(32, -1), (8, -1), (9, -1)], "384 elements are no multiple of the 49"),
    "too many beside -1": ([(48, 9), (2, -1)], "-1 is one size in all pieces, and -48 elements"),
    "0 beside -1": ([(0, -1), (48, 8)], "with a size of 0, -1 could be any size"),
    "huge": ([(2**40, 2**40), (8, -1)], "its sizes are too large"),
    "a piece that the rule refuses": (
        [(47, 8), (8,)],
        "HeadMuon is for matrices, not for torch.Size([8])",
    ),
}


@outside_interpreter
@pytest.mark.parametrize(("view", "reason"), REFUSED.values(), ids=REFUSED)
def test_pieces_that_do_not_fit_are_refused(view: Any, reason: str) -> None:
    param = Parameter(torch.ones(SHAPE))
    optimizer = class_named("HeadMuon")([param])
    param.grad = torch.ones(SHAPE)
    optimizer.param_groups[0]["view"] = view
    for call in (
        optimizer.step,
        lambda: class_named("HeadMuon")([{"params": [param], "view": view}]),
    ):
        with pytest.raises(ValueError, match="group 0: ") as refused:
            call()
        assert reason in str(refused.value)
    assert torch.equal(param.detach(), torch.ones(SHAPE))
    assert not optimizer.state


@outside_interpreter
def test_elementwise_rules_ignore_pieces_and_others_take_no_sparse_gradients() -> None:
    param = Parameter(torch.ones(6, 4))
    optimizer = AdamW([{"params": [param], "view": [(2, 4), (4, 4)]}])
    param.grad = torch.ones(6, 4)
    optimizer.step()
    assert optimizer.state[param]["exp_avg"].shape == (6, 4)
    rows = Adafactor([{"params": [param], "view": [(2, 4), (4, 4)]}])
    param.grad = torch.ones(6, 4).to_sparse(1)
    with pytest.raises(RuntimeError, match="takes no sparse gradients"):
        rows.step()


SCALED = '''from optgen.spec import *

@optimizer(paper="https://example.org")
def Scaled(p, g, /, d=state("norm", shape="scalar"), *, lr=hyper(0.1)):
    """A step by a running sum of norms."""
    d = 0.5 * d + norm(g)
    p = p - lr * d * g
'''


@outside_interpreter
def test_steps_in_pieces_can_be_differentiable() -> None:
    """The second step depends on the scalar states of the first."""
    start = torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4)
    cls = optgen.load(Spec("Scaled", SCALED, "<scaled>", 1))

    def loss(view: Any, scale: Tensor) -> Tensor:
        whole = start * scale
        params = [whole.clone()] if view else [part.clone() for part in whole.split([2, 4])]
        optimizer = cls([{"params": params, **view}], lr=0.1, differentiable=True)
        for _ in range(2):
            grads = start.cos().split([len(param) for param in params])
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad * scale
            optimizer.step()
        return torch.cat(params).pow(3).sum()

    found, expected = torch.tensor(2.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    loss({"view": [(2, 4), (4, 4)]}, found).backward()
    loss({}, expected).backward()
    torch.testing.assert_close(found.grad, expected.grad)


@outside_interpreter
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_parameter_stands_once_in_a_group_of_pieces(lowering: str) -> None:
    param = Parameter(torch.ones(6, 4))
    param.grad = torch.ones_like(param)
    optimizer = class_named("LAMB")([{"params": [param, param], "view": [(2, 4), (4, 4)]}])
    with (
        use_lowering(lowering),
        pytest.raises(RuntimeError, match="more than once: with a view of several pieces"),
    ):
        optimizer.step()

    assert torch.equal(param, torch.ones(6, 4))
