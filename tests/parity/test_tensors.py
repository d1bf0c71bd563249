"""Test tensors of every kind: empty, 0-dim, strided, of several dtypes at once, complex."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity.cases import CASE_OF_DENSE_CLASS, LOWERINGS, Case
from parity.classes import COMPLEX_CLASSES
from parity.trajectories import Run, assert_close, forced_lowering, random_values, train
from torch import Tensor

import optgen.optim

LOWERINGS_OR_NONE = [None, *LOWERINGS]


def channels_last() -> Tensor:
    (value,) = random_values([(2, 3, 4, 5)], torch.float64, 3)
    return value.to(memory_format=torch.channels_last)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.empty(0, 3, dtype=torch.float64),
    "0-dim": lambda: torch.tensor(1.5, dtype=torch.float64),
    "transposed": lambda: random_values([(5, 7)], torch.float64, 1)[0].T,
    "every second": lambda: random_values([(6, 8)], torch.float64, 2)[0][::2, 1::2],
    "channels last": channels_last,
    "expanded gradient": lambda: random_values([(4, 6)], torch.float64, 4)[0],
}


def gradient(layout: str, param: Tensor, step: int) -> Tensor:
    """Return a gradient with the parameter's strides in odd steps, and contiguous in even steps."""
    (grad,) = random_values([tuple(param.shape)], torch.float64, 50 + step)
    if layout == "expanded gradient":
        return grad[:1].expand(param.shape)
    return torch.empty_like(param).copy_(grad) if step % 2 else grad


def run_with_layout(make: Any, layout: str) -> Run:
    """Take 20 steps of a parameter with this layout and of a contiguous one."""
    params = [LAYOUTS[layout]().requires_grad_(), torch.ones(3).double().requires_grad_()]
    run = Run(make(params), params)
    for step in range(20):
        for param in params:
            param.grad = gradient(layout, param, step)
        run.optimizer.step()
    return run


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_any_memory_layout_steps_as_torchs(case: Case, layout: str, lowering: str | None) -> None:
    if case.name == "Adafactor" and layout == "empty":
        pytest.skip("torch divides by the number of elements")
    with forced_lowering(lowering):
        run = run_with_layout(case.ours, layout)

    assert_close(run, run_with_layout(case.theirs, layout))
    param = run.params[0]
    assert param.stride() == LAYOUTS[layout]().stride()


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_a_step_of_a_slice_leaves_the_rest_of_the_tensor_unchanged(
    case: Case, lowering: str | None
) -> None:
    whole = torch.arange(48, dtype=torch.float64).view(6, 8)
    outside = torch.ones(6, 8, dtype=torch.bool)
    outside[1:5:2, 2:7:3] = False
    before = whole.clone()
    param = whole[1:5:2, 2:7:3].requires_grad_()
    optimizer = case.ours([param])
    param.grad = torch.ones_like(param)

    with forced_lowering(lowering):
        optimizer.step()

    assert torch.equal(whole[outside], before[outside])
    assert (whole[~outside] != before[~outside]).all()


BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.02}


def eps_for_16_bits(case: Case) -> dict[str, float]:
    """Return an eps for classes that have one; their default eps rounds to 0 in float16."""
    default = inspect.signature(case.torch_class).parameters.get("eps")
    return {"eps": 1e-3} if default and isinstance(default.default, float) else {}


def run_with_mixed_dtypes(make: Any) -> Run:
    """Train all dtypes in one group, and again in a group with another learning rate."""
    dtypes = [*BOUNDS, torch.float32, *reversed(BOUNDS)]
    params = [
        v.requires_grad_() for i, d in enumerate(dtypes) for v in random_values([(9, 2)], d, i)
    ]
    run = Run(make([{"params": params[:5]}, {"params": params[5:], "lr": 0.02}]), params)
    train(run, 10, skip_some_gradients=True)
    return run


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_dtypes_in_one_group_steps_as_torchs(case: Case, lowering: str | None) -> None:
    case = Case(case.name, {**case.options, **eps_for_16_bits(case)})

    with forced_lowering(lowering):
        run = run_with_mixed_dtypes(case.ours)
    expected = run_with_mixed_dtypes(case.theirs)

    for dtype, bound in BOUNDS.items():
        chosen = [i for i, param in enumerate(run.params) if param.dtype == dtype]
        assert len(chosen) >= 2
        assert_close(
            Run(run.optimizer, [run.params[i] for i in chosen]),
            Run(expected.optimizer, [expected.params[i] for i in chosen]),
            bound,
        )


COMPLEX_CASES = [case for case in CASE_OF_DENSE_CLASS.values() if case.name in COMPLEX_CLASSES]


def complex_run(make: Any, dtype: torch.dtype) -> Run:
    params = [value.requires_grad_() for value in random_values([(3, 4), (), (0,), (5,)], dtype, 8)]
    params.append(random_values([(2, 3)], dtype, 9)[0].T.requires_grad_())
    run = Run(make(params), params)
    train(run, 20, skip_some_gradients=True)
    return run


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64], ids=str)
@pytest.mark.parametrize("case", COMPLEX_CASES, ids=str)
def test_complex_parameters_steps_as_torchs(
    case: Case, dtype: torch.dtype, lowering: str | None
) -> None:
    with forced_lowering(lowering):
        run = complex_run(case.ours, dtype)

    bound = 1e-12 if dtype is torch.complex128 else 1e-5
    assert_close(run, complex_run(case.theirs, dtype), bound)


@pytest.mark.parametrize("case", COMPLEX_CASES, ids=str)
def test_fused_steps_of_complex_parameters_raise_torchs_error(case: Case) -> None:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    param.grad = torch.ones_like(param)

    with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating"):
        case.ours([param], fused=True).step()


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("case", COMPLEX_CASES, ids=str)
def test_a_gradient_may_be_a_conjugate_view(case: Case, lowering: str | None) -> None:
    """Autograd may return a conjugate view for a complex parameter."""
    ours, theirs = (
        random_values([(4,)], torch.complex128, 1)[0].requires_grad_() for _ in range(2)
    )
    grad = random_values([(4,)], torch.complex128, 2)[0].conj()
    assert grad.is_conj()
    optimizers = case.ours([ours]), case.theirs([theirs])
    ours.grad, theirs.grad = grad, grad.resolve_conj()

    with forced_lowering(lowering):
        optimizers[0].step()
    optimizers[1].step()

    assert_close(Run(optimizers[0], [ours]), Run(optimizers[1], [theirs]))


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("case", COMPLEX_CASES, ids=str)
def test_a_parameter_that_is_a_conjugate_view_is_refused(case: Case, lowering: str | None) -> None:
    """The error has the text of torch's Adam. Without the error the step would change a copy."""
    param = torch.nn.Parameter(random_values([(4,)], torch.complex128, 1)[0].conj())
    param.grad = torch.ones(4, dtype=torch.complex128)

    with (
        forced_lowering(lowering),
        pytest.raises(RuntimeError, match="unresolved conjugated tensors"),
    ):
        case.ours([param]).step()


ELEMENTWISE = [name for name in CASE_OF_DENSE_CLASS if name != "Adafactor"]


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize(
    "case", [*map(Case, ELEMENTWISE), *(CASE_OF_DENSE_CLASS[name] for name in ELEMENTWISE)], ids=str
)
def test_the_result_of_an_extreme_gradient_equals_torchs(case: Case, lowering: str | None) -> None:
    """The gradient of the third step is extreme. The result is compared with torch's for-loop."""
    bad = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-320, 1e200, -1e200]
    runs = []
    for make in (case.ours, case.theirs):
        param = torch.nn.Parameter(torch.linspace(-1, 1, len(bad), dtype=torch.float64))
        run = Run(make([param]), [param])
        for step in range(6):
            param.grad = torch.tensor(bad).double() if step == 2 else torch.cos(param.detach())
            with forced_lowering(lowering if make == case.ours else None):
                run.optimizer.step()
        runs.append(dict(run.tensors()))

    for name in runs[1]:
        torch.testing.assert_close(
            runs[0][name], runs[1][name], rtol=1e-11, atol=1e-13, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_bad_gradient_element_makes_adafactors_parameter_nan(
    bad: float, lowering: str | None
) -> None:
    """Torch's Adafactor differs: Python's `max(number, nan)` is the number."""
    param = torch.nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.float64))
    optimizer = optgen.optim.Adafactor([param])
    for step in range(3):
        param.grad = torch.ones_like(param)
        param.grad[3] = bad if step == 1 else 1
        with forced_lowering(lowering):
            optimizer.step()

    assert param.isnan().all()


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_steps_do_not_change_gradients(case: Case, lowering: str | None) -> None:
    params = [torch.nn.Parameter(torch.ones(300_000)), torch.nn.Parameter(torch.ones(3))]
    optimizer = case.ours(params, maximize=True)
    grads = random_values([(300_000,), (3,)], torch.float32, 1)
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()

    with forced_lowering(lowering):
        optimizer.step()
        optimizer.step()

    for param, grad in zip(params, grads, strict=True):
        assert torch.equal(param.grad, grad)


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_large_tensors_beside_small_ones_steps_as_torchs(case: Case, lowering: str | None) -> None:
    """The tensors exceed the sizes at which lowerings split lists and slice tensors."""

    def run_of(make: Any) -> Run:
        shapes = [(5,), (2**18 + 7,), (3, 2**17 + 1), (2,)]
        params = [v.requires_grad_() for v in random_values(shapes, torch.float64, 5)]
        run = Run(make(params), params)
        train(run, 3)
        return run

    with forced_lowering(lowering):
        run = run_of(case.ours)

    assert_close(run, run_of(case.theirs))


@pytest.mark.parametrize("lowering", LOWERINGS_OR_NONE)
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_a_step_without_any_gradient_changes_nothing(case: Case, lowering: str | None) -> None:
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = case.ours([param])

    with forced_lowering(lowering):
        optimizer.step()

    assert torch.equal(param, torch.ones(3))
    assert "step" not in optimizer.state.get(param, {}) or case.name == "Adagrad"


@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_groups_may_differ_in_flags(case: Case) -> None:
    """The flags decide which states exist."""
    flag = {"SGD": "momentum", "Adam": "amsgrad", "AdamW": "amsgrad", "RMSprop": "centered"}
    if case.name not in flag:
        pytest.skip("no such flag")

    def run_of(make: Any) -> Run:
        params = [value.requires_grad_() for value in random_values([(3,)] * 3, torch.float64, 6)]
        off = {"params": params[1:], flag[case.name]: 0 if case.name == "SGD" else False}
        run = Run(make([{"params": params[:1]}, off]), params)
        if case.name == "SGD":
            run.optimizer.param_groups[1]["nesterov"] = False
        train(run, 5)
        # Torch's other classes cannot create a state if the flag is set later.
        if case.name == "SGD":
            run.optimizer.param_groups[1]["momentum"] = 0.5
            train(run, 5, start=5)
        return run

    for lowering in LOWERINGS_OR_NONE:
        with forced_lowering(lowering):
            run = run_of(case.ours)
        assert_close(run, run_of(case.theirs))
