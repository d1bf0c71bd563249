"""Test steps by fused Triton in Triton's interpreter."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, inside_interpreter, outside_interpreter, run_inside
from runtime.fused_triton.triton_cases import (
    error,
    largest_error,
    set_gradients,
    tensors,
    two_groups,
)
from torch import Tensor

import optgen.optim
from optgen import use_lowering
from optgen.runtime.backends import backend
from optgen.runtime.fused_triton import backend as fused_triton
from optgen.runtime.fused_triton import table

pytest.importorskip("triton")

CASES = [
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "maximize": True, "weight_decay": 0.1}),
    ("Adam", {"betas": (0.0, 0.0)}),
    ("AdamW", {}),
    ("SGD", {"weight_decay": 0.1, "maximize": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("RMSprop", {"weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("RAdam", {"weight_decay": 0.1}),
    ("RAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1, "betas": (0.8, 0.8)}),
    ("NAdam", {"weight_decay": 0.1}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {"weight_decay": 0.1}),
    ("Adadelta", {"weight_decay": 0.1}),
]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@outside_interpreter
def test_the_error_says_why_the_lowering_cannot_run() -> None:
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    optimizer = optgen.optim.SGD([param])
    with use_lowering("fused_triton"), pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        optimizer.step()


@outside_interpreter
@pytest.mark.parametrize("missing", ["triton", "numpy"])
def test_the_obstacle_names_a_missing_package(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(
        fused_triton, "find_spec", lambda name: None if name == missing else object()
    )

    assert missing in fused_triton.device_obstacle(torch.device("cpu")).lower()
    needed = missing == "triton"  # a compiled kernel needs no numpy
    assert bool(fused_triton.device_obstacle(torch.device("cuda"))) is needed


@pytest.fixture(autouse=True)
def through_triton() -> Iterator[None]:
    """Force fused Triton in the interpreter, and the for-loop elsewhere."""
    with use_lowering("fused_triton") if INTERPRETED else use_lowering("forloop"):
        yield


def pair(name: str, dtype: torch.dtype, options_of_second: Any = None, **settings: Any) -> Any:
    """Return our parameters, our optimizer, torch's parameters and torch's optimizer."""
    ours, theirs = tensors(dtype), tensors(dtype)
    second_group = options_of_second or {"lr": 3e-3}
    return (
        ours,
        getattr(optgen.optim, name)(two_groups(ours, second_group), **settings),
        theirs,
        getattr(torch.optim, name)(two_groups(theirs, second_group), foreach=False, **settings),
    )


def train(ours: list[Tensor], optimizer: Any, theirs: list[Tensor], other: Any, steps: int) -> None:
    for step in range(steps):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizer.step()
        other.step()


@inside_interpreter
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_steps_agree_with_torch_in_float64(name: str, settings: dict[str, Any]) -> None:
    ours_and_torchs = pair(name, torch.float64, **settings)
    train(*ours_and_torchs, steps=7)  # RAdam changes its formula in the sixth step
    assert largest_error(*ours_and_torchs) < 1e-14


@inside_interpreter
@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "RAdam", "NAdam", "Adamax", "Adadelta"])
def test_float32_steps_agree_with_torch(name: str) -> None:
    ours_and_torchs = pair(name, torch.float32, weight_decay=0.1)
    train(*ours_and_torchs, steps=4)
    assert largest_error(*ours_and_torchs) < 1e-6


@inside_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_once_a_step(dtype: torch.dtype) -> None:
    param = torch.randn(2000).to(dtype).requires_grad_()
    start = param.detach().double()
    param.grad = torch.randn(2000).to(dtype)
    exact = start - 0.1 * param.grad.double()
    optgen.optim.SGD([param], lr=0.1).step()
    assert torch.equal(param, exact.to(dtype))


@inside_interpreter
def test_each_dtype_of_an_optimizer_has_one_bucket() -> None:
    dtypes = (torch.float64, torch.float32, torch.float16)
    ours, theirs = ([p for dtype in dtypes for p in tensors(dtype)] for _ in range(2))
    optimizer = optgen.optim.AdamW(ours, eps=1e-3)  # torch's for-loop loses 1e-8 in float16
    other = torch.optim.AdamW(theirs, eps=1e-3, foreach=False)
    train(ours, optimizer, theirs, other, steps=2)
    for a, b in zip(ours, theirs, strict=True):
        assert error(a, b) < {8: 1e-14, 4: 1e-6, 2: 2e-3}[a.dtype.itemsize]
    plan = backend("fused_triton")._plans[optimizer][None]
    assert len(plan._buckets) == 3  # one launch each, for any number of tensors


@inside_interpreter
def test_a_moved_gradient_uploads_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[tuple[int, ...]] = []
    upload = table.upload

    def counted(target: Tensor, values: Any, staging: Any) -> None:
        uploads.append(tuple(target.shape))
        upload(target, values, staging)

    monkeypatch.setattr(table, "upload", counted)
    params = [torch.randn(20, requires_grad=True) for _ in range(3)]
    optimizer = optgen.optim.Adam(params)
    for param in params:
        param.grad = torch.randn(20)
    optimizer.step()
    # The table and its blocks, hyperparameters, addresses: param, grad, two states, step.
    assert uploads == [(9, 3), (3,), (1, 8), *[(3,)] * 5]
    uploads.clear()
    optimizer.step()
    assert uploads == []
    params[1].grad = torch.randn(20)
    optimizer.step()
    assert uploads == [(3,)]
    uploads.clear()
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert uploads == [(1, 8)]


@inside_interpreter
def test_a_tensor_learning_rate_is_read_in_place() -> None:
    lr = torch.tensor(0.25, dtype=torch.float64)
    param = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    param.grad = torch.ones(5, dtype=torch.float64)
    optimizer = optgen.optim.SGD([param], lr=lr)
    optimizer.step()
    lr.fill_(0.5)
    optimizer.step()
    assert param.tolist() == [-0.75] * 5
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert param.tolist() == [-0.75] * 5


@inside_interpreter
@pytest.mark.parametrize("scale", [4.0, 3.0])
def test_gradients_are_unscaled(scale: float) -> None:
    ours_and_torchs = pair("Adam", torch.float32, fused=None)
    ours, optimizer, theirs, other = ours_and_torchs
    for step in range(3):
        set_gradients(ours, step, scale)
        set_gradients(theirs, step)
        optimizer.grad_scale = torch.tensor(scale)
        optimizer.found_inf = torch.tensor(0.0)
        optimizer.step()
        other.step()
        for a, b in zip(ours, theirs, strict=True):  # torch's kernels store unscaled gradients, too
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or error(a.grad, b.grad) < 1e-6
    assert largest_error(*ours_and_torchs) < 1e-6


@inside_interpreter
@pytest.mark.parametrize(
    ("name", "settings"),
    [("Adam", {}), ("SGD", {"momentum": 0.9, "dampening": 0.5}), ("NAdam", {})],
)
def test_a_step_with_an_infinity_is_skipped(name: str, settings: dict[str, Any]) -> None:
    ours_and_torchs = pair(name, torch.float64, **settings)
    ours, optimizer, _, _ = ours_and_torchs
    start = [param.detach().clone() for param in ours]
    set_gradients(ours, 0)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, start, strict=True))
    optimizer.found_inf = torch.tensor(0.0)
    # Step counts, products and fresh states ignore the skipped step.
    train(*ours_and_torchs, steps=3)
    assert largest_error(*ours_and_torchs) < 1e-14


@inside_interpreter
def test_an_infinite_parameter_stays_infinite() -> None:
    param = torch.full((3,), torch.inf, requires_grad=True)
    param.grad = torch.ones(3)
    optgen.optim.SGD([param], lr=0.1, weight_decay=0.0).step()
    assert param.tolist() == [torch.inf] * 3


@inside_interpreter
def test_nan_reaches_the_maximum() -> None:
    param = torch.zeros(2, requires_grad=True)
    param.grad = torch.tensor([torch.nan, 1.0])
    optimizer = optgen.optim.Adam([param], amsgrad=True)
    optimizer.step()
    assert optimizer.state[param]["max_exp_avg_sq"].isnan().tolist() == [True, False]


@inside_interpreter
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "NAdam"])
def test_a_weight_decay_of_nan_gives_nan(name: str) -> None:
    ours_and_torchs = pair(name, torch.float64)
    for optimizer in ours_and_torchs[1::2]:
        for group in optimizer.param_groups:
            group["weight_decay"] = torch.nan
    train(*ours_and_torchs, steps=2)
    for ours, theirs in zip(ours_and_torchs[0], ours_and_torchs[2], strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
    assert ours_and_torchs[0][4].isnan().all()


@inside_interpreter
def test_a_step_advances_the_version_of_a_parameter() -> None:
    param = torch.ones(3, requires_grad=True)
    square = (param * param).sum()
    param.grad = torch.ones(3)
    optgen.optim.SGD([param], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward()


@inside_interpreter
def test_exchanged_parameters_are_stepped() -> None:
    param = torch.ones(4, requires_grad=True)
    optimizer = optgen.optim.Adam([param], lr=0.5)
    param.grad = torch.ones(4)
    optimizer.step()
    moved = param.detach().clone()
    param.data = moved
    optimizer.step()
    assert param.data_ptr() == moved.data_ptr()
    assert torch.allclose(moved, torch.zeros(4), atol=1e-5)
    other = torch.full((4,), 2.0, requires_grad=True)
    optimizer.param_groups[0]["params"][0] = other
    other.grad = torch.ones(4)
    optimizer.step()
    assert torch.allclose(other, torch.full((4,), 1.5), atol=1e-5)


@inside_interpreter
def test_a_checkpoint_resumes() -> None:
    ours_and_torchs = pair("NAdam", torch.float64, weight_decay=0.1)
    _, optimizer, _, other = ours_and_torchs
    train(*ours_and_torchs, steps=2)
    optimizer.load_state_dict(deepcopy(other.state_dict()))
    other.load_state_dict(deepcopy(other.state_dict()))  # this also changes the dtype of mu_product
    train(*ours_and_torchs, steps=2)
    assert largest_error(*ours_and_torchs) < 1e-14
