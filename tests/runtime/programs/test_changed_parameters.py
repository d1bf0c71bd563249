"""Test which parameters a program changes, and their dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import outside_interpreter, run_inside
from runtime.programs.schedule_free import (
    ADAMW,
    LOWERINGS,
    SGD,
    check_close,
    param_values,
    parameters,
    train,
)

import optgen
from optgen.spec import Spec


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@outside_interpreter
def test_a_program_does_not_change_a_parameter_without_state() -> None:
    params = parameters()
    optimizer = ADAMW(params)
    optimizer.eval()
    optimizer.train()
    assert not optimizer.state
    for param in params[1:]:
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.eval()

    assert all(map(torch.equal, params[:1], parameters()[:1]))
    assert params[0] not in optimizer.state
    assert not any(map(torch.equal, params[1:], parameters()[1:]))


@outside_interpreter
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_program_moves_a_parameter_that_is_listed_twice_once() -> None:
    param = parameters()[0]
    optimizer = SGD([param, param], momentum=0.5)
    train(optimizer, 2)
    before, z = param_values(optimizer)[0], optimizer.state[param]["z"]
    optimizer.eval()

    check_close([param], [2 * before - z])


@outside_interpreter
def test_an_error_of_a_program_changes_no_group() -> None:
    """The program cannot convert the second group, so it does not convert the first one."""
    params = parameters()
    optimizer: Any = ADAMW([{"params": params[:2]}, {"params": params[2:]}])
    train(optimizer, 2)
    before = param_values(optimizer)
    optimizer.state[params[3]]["z"] = torch.zeros(7, dtype=torch.float64)
    with pytest.raises(ValueError, match="differ in length or in the shapes"):
        optimizer.eval()

    assert all(map(torch.equal, param_values(optimizer), before))
    assert all(group["train_mode"] for group in optimizer.param_groups)


@outside_interpreter
@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": False}])
def test_a_program_follows_the_options_of_its_group(options: dict[str, Any]) -> None:
    """If a group's options exclude the fused kernel, its programs run without the kernel."""
    optimizer: Any = ADAMW(parameters(), **options)
    program = optimizer.eval_program.function(optimizer.lowerings)
    program._cached.clear()
    train(optimizer, 2)
    optimizer.eval()

    assert not program._cached


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_a_program_takes_any_dtype(dtype: torch.dtype, lowering: str) -> None:
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(5, 3).to(dtype))
    optimizer: Any = SGD([param], lr=0.1, momentum=0.75)
    with optgen.use_lowering("forloop"):
        for _ in range(3):
            param.grad = torch.randn(5, 3).to(dtype)
            optimizer.step()
    double = torch.complex128 if dtype.is_complex else torch.float64
    p, z = param.detach().to(double), optimizer.state[param]["z"].to(double)
    version = param._version
    with optgen.use_lowering(lowering):
        optimizer.eval()

    assert param._version > version
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(
        param.detach().to(double), p + (1 - 1 / 0.75) * (z - p), rtol=tolerance, atol=tolerance
    )


OPTIONAL_AVERAGE = '''from optgen.spec import flag, hyper, optimizer, state


@optimizer(paper="https://example.org")
def OptionalAverage(
    p, g, /, a=state("average", init="p", when="keep"), *,
    lr=hyper(0.5, ge=0, tensor="always"), keep=flag(True), back=hyper(2.0), to=hyper(0.5),
):
    """Keeps an average if the flag says so."""
    p = p - lr * g
    if keep:
        a = (a + p) / 2


@OptionalAverage.train
def move_back(p, a, /, *, back):
    p = a + back * (p - a)


@OptionalAverage.eval
def move(p, a, /, *, to, lr):
    p = a + to * (p - a) + 0 * lr
'''


@outside_interpreter
def test_a_program_does_not_change_a_group_whose_options_exclude_the_state() -> None:
    """The learning rate, which one of the programs takes, may be a tensor."""
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "keep": False}]
    optimizer: Any = optgen.load(
        Spec("OptionalAverage", OPTIONAL_AVERAGE, "optional_average.py", 1)
    )(groups, lr=torch.tensor(0.5))
    for param in params:
        param.grad = torch.ones(3)
    optimizer.step()  # p is 0.5, and the average is 0.75
    optimizer.eval()

    assert params[0].tolist() == [0.625] * 3
    assert params[1].tolist() == [0.5] * 3
    optimizer.train()
    assert params[0].tolist() == [0.5] * 3
