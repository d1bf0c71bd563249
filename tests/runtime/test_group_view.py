"""Test the group option `view`: a rule sees a parameter as if it had the view's shape."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.capture import captured
from lowerings.phased_rules import RAGGED
from lowerings.test_phases import orthogonalize_in_own_dtype
from spec_files import spec_file
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.keyed import KeyedOptimizerWrapper, RowWiseAdagrad, UpdateInBackward
from optgen.optim import Adafactor, AdamW, Muon
from optgen.runtime import matrix_ops
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


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@cache
def class_named(name: str) -> Any:
    """Return the class of this name, from this package or from a spec of the tests."""
    for cls in (Adafactor, Muon, RowWiseAdagrad, AdamW):
        if cls.__name__ == name:
            return cls
    if name == "Ragged":
        return optgen.load(Spec(name, RAGGED.replace("@optimizer()", _PAPER), "<ragged>", 1))
    return optgen.load(spec_file("head_muon" if name == "HeadMuon" else name.lower()))


@pytest.fixture
def float64_matrix_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep matrix ops in float64."""
    monkeypatch.setattr(matrix_ops, "orthogonalize", orthogonalize_in_own_dtype)


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


VIEWS = [  # a parameter's shape, and its view
    ((48, 16), (3, 4, -1, 16)),
    ((48, 16), (12, 4, 16)),
    ((6, 4, 3, 3), (6, -1)),
    ((60,), (5, 12)),
    ((5, 12), (2, 1, 30, 1)),
]


DTYPES = [torch.float32] if INTERPRETED else [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_with_a_view_equals_a_step_of_reshaped_parameters(
    name: str, lowering: str, dtype: torch.dtype
) -> None:
    views = [(shape, view) for shape, view in VIEWS if name not in MATRIX_RULES or len(view) == 2]
    for shape, view in views[:1] if INTERPRETED else views:
        run = ViewedAndPlain(class_named(name), OPTIONS[name], [shape, shape], view, dtype)
        for step in range(2 if INTERPRETED else STEPS):
            run.step(lowering, missing=1 if step == 1 else None)
        run.check()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_matrix_seen_as_a_vector_takes_the_plan_for_vectors(lowering: str) -> None:
    run = ViewedAndPlain(Adafactor, {}, [(3, 4), (2, 5)], (-1,))
    for _ in range(STEPS):
        run.step(lowering)
    run.check()
    assert [list(run.optimizer.state[param]) for param in run.ours] == [["step", "variance"]] * 2


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_parameters_of_several_shapes_share_a_view(lowering: str) -> None:
    """A -1 stands for another size in each parameter, and for 0 in one without elements."""
    shapes = [(48, 16), (24, 2), (12, 0), (2, 6, 4)]
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    ours = [Parameter(value.clone()) for value in drawn]
    plain = [Parameter(value.reshape(3, value.numel() // 6, 2)) for value in drawn]
    optimizer = Adafactor([{"params": ours, "view": (3, -1, 2)}], lr=0.1)
    reference = Adafactor(plain, lr=0.1)
    for _ in range(STEPS):
        for param, plain_param in zip(ours, plain, strict=True):
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            plain_param.grad = param.grad.reshape(plain_param.shape)
        with use_lowering(lowering):
            optimizer.step()
            reference.step()
    for param, plain_param in zip(ours, plain, strict=True):
        assert torch.equal(param.detach().reshape(plain_param.shape), plain_param.detach())


def results_by_view_and_by_head(cls: Any, lowering: str, dtype: torch.dtype) -> list[list[Tensor]]:
    """Train a QKV weight by a view, and each head as a parameter; return pairs of their results."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(48, 16, generator=generator, dtype=dtype)
    qkv = Parameter(weight.clone())
    heads = [Parameter(head.clone()) for head in weight.view(12, 4, 16)]
    by_view = cls([{"params": [qkv], "view": (3, 4, -1, 16)}], lr=0.1)
    by_head = cls(heads, lr=0.1)
    for _ in range(10):
        grad = torch.randn(48, 16, generator=generator, dtype=dtype)
        qkv.grad = grad.clone()
        for head, head_grad in zip(heads, grad.view(12, 4, 16), strict=True):
            head.grad = head_grad.clone()
        with use_lowering(lowering):
            by_view.step()
            by_head.step()
    states, states_of_heads = by_view.state[qkv], [by_head.state[head] for head in heads]
    assert states["row_sq"].shape == (3, 4, 4, 1)
    assert states["momentum_buffer"].shape == qkv.shape
    return [
        [qkv.detach(), torch.cat([head.detach() for head in heads])],
        *(
            [
                states[key].reshape(-1),
                torch.cat([each[key].reshape(-1) for each in states_of_heads]),
            ]
            for key in states
        ),
    ]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_viewed_heads_step_as_parameters_of_their_own_in_float64(
    lowering: str, float64_matrix_ops: None
) -> None:
    for found, expected in results_by_view_and_by_head(
        class_named("HeadMuon"), lowering, torch.float64
    ):
        check_close(found, expected, 1e-12)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_viewed_heads_step_as_parameters_of_their_own_in_float32(lowering: str) -> None:
    """With a view too, `orthogonalize` multiplies the matrices of single heads, in bfloat16."""
    for found, expected in results_by_view_and_by_head(
        class_named("HeadMuon"), lowering, torch.float32
    ):
        check_close(found, expected, 1e-6)


LAYOUTS = [channels_last, last_axes_transposed, with_gaps]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["Adafactor"] + ([] if INTERPRETED else ["HeadMuon", "LAMB"]))
def test_memory_that_cannot_be_viewed_is_copied(name: str, lowering: str) -> None:
    """Parameters, gradients and states are copied, and written back, whatever their layout."""
    pairs = [(layout, unchanged) for layout in LAYOUTS]
    pairs += [(unchanged, layout) for layout in LAYOUTS] + [(channels_last, channels_last)]
    for layouts in pairs[::3] if INTERPRETED else pairs:
        run = ViewedAndPlain(
            class_named(name), OPTIONS[name], [(4, 3, 2, 5), (2, 6, 5, 2)], (4, -1), layouts=layouts
        )
        strides = [param.stride() for param in run.ours]
        for step in range(2 if INTERPRETED else 3):
            run.step(lowering, missing=0 if step == 1 else None)
        run.check(1e-12)
        assert [param.stride() for param in run.ours] == strides


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_viewed_step_advances_the_parameters_version(lowering: str) -> None:
    for layout in (unchanged, channels_last):
        param = Parameter(layout(torch.ones(2, 3, 4, 5)))
        param.grad, before = torch.ones_like(param), param._version
        with use_lowering(lowering):
            Adafactor([{"params": [param], "view": (2, -1)}]).step()
        assert param._version > before


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_elementwise_rule_ignores_the_view(lowering: str) -> None:
    run = ViewedAndPlain(AdamW, {"lr": 0.1, "amsgrad": True}, [(4, 6), (2, 12)], (3, -1, 2))
    for _ in range(STEPS):
        run.step(lowering)
    run.check()


def test_complex_parameters_of_an_elementwise_rule_ignore_the_view() -> None:
    results = []
    for group in ({"view": (3, -1)}, {}):
        param = Parameter(torch.full((4, 6), 1 + 2j))
        optimizer = AdamW([{"params": [param], **group}], lr=0.1)
        for _ in range(3):
            param.grad = torch.full_like(param, 2 - 1j)
            optimizer.step()
        results.append(param.detach())
    assert torch.equal(*results)


@pytest.mark.skipif(INTERPRETED, reason="the error comes before any lowering runs")
def test_complex_parameters_of_another_rule_are_refused() -> None:
    param = Parameter(torch.full((4, 6), 1 + 2j))
    param.grad = torch.ones_like(param)
    optimizer = Adafactor([{"params": [param], "view": (3, -1)}])
    with pytest.raises(RuntimeError, match="Adafactor does not support complex parameters"):
        optimizer.step()
    assert not optimizer.state


@pytest.mark.skipif(INTERPRETED, reason="the for-loop takes a parameter that is listed twice")
def test_a_parameter_listed_twice_is_stepped_twice() -> None:
    """The second update starts from the result of the first, even if the view is a copy."""
    for layout in (unchanged, channels_last):
        results = []
        for view in ((2, -1), None):
            param = Parameter(layout(torch.linspace(-1, 1, 24).reshape(2, 3, 2, 2)))
            if view is None:
                param = Parameter(param.detach().reshape(2, -1).clone())
            with pytest.warns(UserWarning, match="duplicate parameters"):
                optimizer = Adafactor([{"params": [param, param], "view": view}], lr=0.1)
            for _ in range(3):
                param.grad = torch.ones_like(param)
                optimizer.step()
            results.append(param.detach().reshape(2, -1))
        check_close(*results, 1e-6)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_view_of_none_is_no_view(lowering: str) -> None:
    params = [Parameter(torch.arange(12.0).reshape(3, 4)) for _ in range(2)]
    with use_lowering(lowering):
        for param, group in zip(params, ({"view": None}, {}), strict=True):
            param.grad = torch.ones_like(param)
            Adafactor([{"params": [param], **group}]).step()
    assert torch.equal(*params)


@pytest.mark.skipif(INTERPRETED, reason="the wrappers call the same kernels")
def test_updates_in_the_backward_pass_see_the_view() -> None:
    """Each bucket has its group's view, so a rule for matrices takes a convolution."""
    results = []
    for in_backward in (True, False):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.Flatten())
        groups = [{"params": list(network.parameters()), "view": (4, -1)}]
        inputs = torch.randn(2, 2, 4, 4)
        if in_backward:
            model: torch.nn.Module = UpdateInBackward(network, Muon, groups=groups, lr=0.1)
        else:
            model, optimizer = network, Muon(groups, lr=0.1)
        for _ in range(3):
            model(inputs).square().mean().backward()
            if in_backward:
                model.fused_optimizer.step()
            else:
                optimizer.step()
                optimizer.zero_grad()
        results.append(network[0].weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.skipif(INTERPRETED, reason="the wrappers call the same kernels")
def test_a_keyed_optimizer_makes_the_states_of_the_view() -> None:
    param = Parameter(torch.ones(6, 8))
    inner = Adafactor([{"params": [param], "view": (2, 3, 8)}])
    KeyedOptimizerWrapper({"weight": param}, lambda params: inner).init_state()
    shapes = {key: tuple(value.shape) for key, value in inner.state[param].items()}
    assert shapes == {"step": (), "row_var": (2, 3, 1), "col_var": (2, 1, 8)}


class TensorSubclass(Tensor):
    """A tensor class with operations of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.skipif(INTERPRETED, reason="only the for-loop takes such tensors")
def test_a_tensor_class_with_operations_of_its_own_may_have_a_view() -> None:
    plain = Parameter(torch.arange(24.0).reshape(4, 6))
    subclassed = torch.arange(24.0).reshape(4, 6).as_subclass(TensorSubclass).requires_grad_()
    for param in (plain, subclassed):
        param.grad = torch.ones_like(param)
        optimizer = Adafactor([{"params": [param], "view": (2, -1, 3)}])
        with use_lowering("forloop"):
            optimizer.step()
        assert optimizer.state[param]["row_var"].shape == (2, 4, 1)
    assert torch.equal(plain.detach(), subclassed.detach().as_subclass(Tensor))


@pytest.mark.skipif(INTERPRETED, reason="torch's operations take the step")
@pytest.mark.parametrize("layout", [unchanged, channels_last])
def test_autograd_follows_a_viewed_step(layout: Layout) -> None:
    """The gradients of the learning rate and of the start equal those of a plain parameter."""
    results = []
    start = torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(2, 3, 2, 2)
    for shape, view in [((2, 3, 2, 2), (2, -1)), ((2, 12), None)]:
        lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        base = start.reshape(shape) if view is None else layout(start.clone())
        base = base.clone().requires_grad_()
        param = base.clone()
        param.retain_grad()
        param.grad = torch.cos(start.reshape(shape))
        optimizer = Adafactor([{"params": [param], "view": view}], lr=lr, differentiable=True)
        optimizer.step()
        param.sin().sum().backward()
        results.append([lr.grad, base.grad.reshape(2, -1), param.detach().reshape(2, -1)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(INTERPRETED, reason="the functional form is the for-loop's")
def test_a_differentiable_step_refuses_a_leaf() -> None:
    for layout in (unchanged, channels_last):
        param = Parameter(layout(torch.ones(2, 3, 2, 2)))
        param.grad, before = torch.ones_like(param), param.detach().clone()
        optimizer = Adafactor([{"params": [param], "view": (2, -1)}], differentiable=True)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            optimizer.step()
        assert torch.equal(param.detach(), before)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("layout", [unchanged, last_axes_transposed])
def test_a_gradient_scaler_leaves_unscaling_to_the_step(lowering: str, layout: Layout) -> None:
    """The step unscales gradients in place, even those it copies; an overflow skips the step."""
    run = ViewedAndPlain(Adafactor, {"lr": 0.1, "fused": None}, [(6, 8)], (2, 3, -1), torch.float32)
    for overflow in (0.0, 1.0, 0.0):
        (ours,), (plain,) = run.ours, run.plain
        grad = torch.linspace(-8, 8, 48).reshape(6, 8)
        ours.grad, plain.grad = layout(grad.clone()), grad.reshape(2, 3, 8).clone()
        for optimizer in (run.optimizer, run.reference):
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(overflow)
            with use_lowering(lowering):
                optimizer.step()
        assert torch.equal(ours.grad, grad if overflow else grad / 4)
    run.check(1e-6)


@pytest.mark.skipif(INTERPRETED, reason="the functional form is the for-loop's")
@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("layout", [unchanged, last_axes_transposed])
def test_a_capturable_step_reads_no_number_on_the_host(lowering: str, layout: Layout) -> None:
    """The results stay those of a plain parameter."""
    options = {"lr": 0.1, "capturable": True}
    run = ViewedAndPlain(Adafactor, options, [(6, 8)], (2, 3, -1), layouts=(layout, unchanged))
    for forbid_reads in (False, True, True):
        with captured(forbid_reads):
            run.step(lowering)
    run.check(1e-12)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_deepcopy_keeps_the_view(lowering: str) -> None:
    run = ViewedAndPlain(Adafactor, {"lr": 0.1}, [(6, 8)], (2, 3, -1))
    run.step(lowering)
    run.ours, run.optimizer = copy.deepcopy((run.ours, run.optimizer))
    assert run.optimizer.param_groups[0]["view"] == (2, 3, -1)
    run.step(lowering)
    run.check()
