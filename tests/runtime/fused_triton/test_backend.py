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
    is_obstacle_on_cuda = missing == "triton"  # a compiled kernel needs no numpy
    assert bool(fused_triton.device_obstacle(torch.device("cuda"))) is is_obstacle_on_cuda


@pytest.fixture(autouse=True)
def force_fused_triton() -> Iterator[None]:
    """Force fused Triton in the interpreter, and the for-loop elsewhere."""
    with use_lowering("fused_triton") if INTERPRETED else use_lowering("forloop"):
        yield


def new_optimizers(
    name: str, dtype: torch.dtype, second_options: Any = None, **settings: Any
) -> Any:
    """Return our parameters, our optimizer, torch's parameters and torch's optimizer."""
    ours, theirs = tensors(dtype), tensors(dtype)
    second_options = second_options or {"lr": 3e-3}
    return (
        ours,
        getattr(optgen.optim, name)(two_groups(ours, second_options), **settings),
        theirs,
        getattr(torch.optim, name)(two_groups(theirs, second_options), foreach=False, **settings),
    )


def train(
    ours: list[Tensor], optimizer: Any, theirs: list[Tensor], reference: Any, steps: int
) -> None:
    """Take steps of both optimizers with equal gradients."""
    for step in range(steps):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizer.step()
        reference.step()


@inside_interpreter
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_steps_agree_with_torch_in_float64(name: str, settings: dict[str, Any]) -> None:
    ours_and_torchs = new_optimizers(name, torch.float64, **settings)
    train(*ours_and_torchs, steps=7)  # RAdam changes its formula in the sixth step
    assert largest_error(*ours_and_torchs) < 1e-14


@inside_interpreter
@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "RAdam", "NAdam", "Adamax", "Adadelta"])
def test_float32_steps_agree_with_torch(name: str) -> None:
    ours_and_torchs = new_optimizers(name, torch.float32, weight_decay=0.1)
    train(*ours_and_torchs, steps=4)
    assert largest_error(*ours_and_torchs) < 1e-6


@inside_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_parameters_are_rounded_once_a_step(dtype: torch.dtype) -> None:
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
    reference = torch.optim.AdamW(theirs, eps=1e-3, foreach=False)
    train(ours, optimizer, theirs, reference, steps=2)
    bounds = dict(zip(dtypes, (1e-14, 1e-6, 2e-3), strict=True))
    for param, expected in zip(ours, theirs, strict=True):
        assert error(param, expected) < bounds[param.dtype]
    plan = backend("fused_triton")._kept[optimizer][None]._kept[0]
    assert len(plan.buckets) == 3  # a bucket is one launch, for any number of tensors


@inside_interpreter
def test_a_moved_gradient_uploads_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[tuple[int, ...]] = []
    upload = table.upload

    def record_upload(target: Tensor, values: Any, memory: Any) -> None:
        uploads.append(tuple(target.shape))
        upload(target, values, memory)

    monkeypatch.setattr(table, "upload", record_upload)
    params = [torch.randn(20, requires_grad=True) for _ in range(3)]
    optimizer = optgen.optim.Adam(params)
    for param in params:
        param.grad = torch.randn(20)
    optimizer.step()
    # The table, its blocks, hyperparameters, and six rows of addresses at once: parameters,
    # gradients, three states, one of which is absent, and step counts.
    assert uploads == [(9, 3), (3,), (1, 8), (6 * 3,)]
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
    ours_and_torchs = new_optimizers("Adam", torch.float32, fused=None)
    ours, optimizer, theirs, reference = ours_and_torchs
    for step in range(3):
        set_gradients(ours, step, scale)
        set_gradients(theirs, step)
        optimizer.grad_scale = torch.tensor(scale)
        optimizer.found_inf = torch.tensor(0.0)
        optimizer.step()
        reference.step()
        for param, expected in zip(ours, theirs, strict=True):  # a kernel stores unscaled gradients
            assert (param.grad is None) == (expected.grad is None)
            assert param.grad is None or error(param.grad, expected.grad) < 1e-6
    assert largest_error(*ours_and_torchs) < 1e-6


@inside_interpreter
@pytest.mark.parametrize(
    ("name", "settings"),
    [("Adam", {}), ("SGD", {"momentum": 0.9, "dampening": 0.5}), ("NAdam", {})],
)
def test_a_step_with_an_infinity_is_skipped(name: str, settings: dict[str, Any]) -> None:
    ours_and_torchs = new_optimizers(name, torch.float64, **settings)
    ours, optimizer, _, _ = ours_and_torchs
    start = [param.detach().clone() for param in ours]
    set_gradients(ours, 0)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(map(torch.equal, ours, start))
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
def test_nan_reaches_amsgrads_maximum() -> None:
    param = torch.zeros(2, requires_grad=True)
    param.grad = torch.tensor([torch.nan, 1.0])
    optimizer = optgen.optim.Adam([param], amsgrad=True)
    optimizer.step()
    assert optimizer.state[param]["max_exp_avg_sq"].isnan().tolist() == [True, False]


@inside_interpreter
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "NAdam"])
def test_a_weight_decay_of_nan_gives_nan(name: str) -> None:
    ours_and_torchs = new_optimizers(name, torch.float64)
    ours, optimizer, theirs, reference = ours_and_torchs
    for group in (*optimizer.param_groups, *reference.param_groups):
        group["weight_decay"] = torch.nan
    train(*ours_and_torchs, steps=2)
    for param, expected in zip(ours, theirs, strict=True):
        assert torch.equal(param.isnan(), expected.isnan())
    assert ours[4].isnan().all()


@inside_interpreter
def test_a_step_advances_the_version_of_a_parameter() -> None:
    param = torch.ones(3, requires_grad=True)
    square = (param * param).sum()
    param.grad = torch.ones(3)
    optgen.optim.SGD([param], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward()


@inside_interpreter
def test_replaced_parameters_are_stepped() -> None:
    param = torch.ones(4, requires_grad=True)
    optimizer = optgen.optim.Adam([param], lr=0.5)
    param.grad = torch.ones(4)
    optimizer.step()
    new_memory = param.detach().clone()
    param.data = new_memory
    optimizer.step()
    assert param.data_ptr() == new_memory.data_ptr()
    assert torch.allclose(new_memory, torch.zeros(4), atol=1e-5)
    new_param = torch.full((4,), 2.0, requires_grad=True)
    optimizer.param_groups[0]["params"][0] = new_param
    new_param.grad = torch.ones(4)
    optimizer.step()
    assert torch.allclose(new_param, torch.full((4,), 1.5), atol=1e-5)


@inside_interpreter
def test_training_resumes_from_torchs_checkpoint() -> None:
    ours_and_torchs = new_optimizers("NAdam", torch.float64, weight_decay=0.1)
    _, optimizer, _, reference = ours_and_torchs
    train(*ours_and_torchs, steps=2)
    optimizer.load_state_dict(deepcopy(reference.state_dict()))
    # A load changes the dtype of mu_product, so torch's optimizer loads its checkpoint too.
    reference.load_state_dict(deepcopy(reference.state_dict()))
    train(*ours_and_torchs, steps=2)
    assert largest_error(*ours_and_torchs) < 1e-14
