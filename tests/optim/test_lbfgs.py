"""Test that LBFGS has torch's parameters, losses and number of closure calls at every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim.lbfgs_problems import (
    assert_torchs_path,
    distance,
    logistic,
    new_run,
    quadratic,
    rosenbrock,
    start_point,
)
from torch_inputs import optim_db

import optgen
from optgen.optim import LBFGS

[INFO] = [info for info in optim_db if info.optim_cls is torch.optim.LBFGS]
OPTIONS_OF_TORCHS_TESTS: list[dict[str, Any]] = [
    case.kwargs for case in INFO.optim_inputs_func(device="cpu")
]
MORE_OPTIONS: list[dict[str, Any]] = [
    {"line_search_fn": "strong_wolfe", "history_size": 4},
    {"line_search_fn": "strong_wolfe", "history_size": 1, "lr": 0.3},
    {"line_search_fn": "strong_wolfe", "max_iter": 1},
    {"line_search_fn": "strong_wolfe", "max_eval": 3},
    {"line_search_fn": "strong_wolfe", "max_eval": 1},
    {"line_search_fn": "strong_wolfe", "lr": 30.0, "tolerance_change": 1e-4},
    {"lr": 0.05, "history_size": 3, "max_iter": 7},
    {"lr": torch.tensor([0.05], dtype=torch.float64), "max_eval": 2},
    {"lr": 0.1, "tolerance_grad": 1e-2},
    {"lr": 0},
    {"max_iter": 1},
]
STEPS = 6


def label(options: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items()) or "default"


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize(("problem", "size"), [(rosenbrock, 2), (quadratic, 10), (logistic, 60)])
@pytest.mark.parametrize("options", [*OPTIONS_OF_TORCHS_TESTS, *MORE_OPTIONS], ids=label)
def test_lbfgs_takes_torchs_path(options: dict[str, Any], problem: Any, size: int) -> None:
    assert_torchs_path(problem(size), start_point(size).detach(), STEPS, **options)


@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe"}], ids=label)
def test_maximizing_equals_minimizing_the_negative(options: dict[str, Any]) -> None:
    down = new_run(LBFGS, logistic(5), start_point(5), **options)
    up = new_run(LBFGS, logistic(5), start_point(5), maximize=True, **options)
    up.sign = -1.0

    for found, expected in zip(up.take_steps(3), down.take_steps(3), strict=True):
        assert found.loss == -expected.loss
        assert found.calls == expected.calls
        assert torch.equal(found.param, expected.param)


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("fused", [None, False])
def test_foreach_and_fused_have_no_effect(foreach: bool | None, fused: bool | None) -> None:
    plain = new_run(LBFGS, rosenbrock(10), start_point(10)).take_steps(2)[-1]
    with_flags = new_run(
        LBFGS, rosenbrock(10), start_point(10), foreach=foreach, fused=fused
    ).take_steps(2)[-1]

    assert torch.equal(plain.param, with_flags.param)


def test_a_run_in_float32_ends_near_one_in_float64() -> None:
    expected = new_run(
        LBFGS, rosenbrock(10), start_point(10), line_search_fn="strong_wolfe"
    ).take_steps(10)
    start = start_point(10, torch.float32)
    found = new_run(LBFGS, rosenbrock(10), start, line_search_fn="strong_wolfe").take_steps(10)

    assert expected[-1].loss < 1e-9
    assert distance(found[-1].param.double(), expected[-1].param) < 1e-3


@pytest.mark.parametrize("options", [{"lr": 0.3}, {"line_search_fn": "strong_wolfe"}], ids=label)
def test_a_network_learns_digits_as_with_torchs_lbfgs(options: dict[str, Any]) -> None:
    """Steps on the full data set have torch's losses. 98% of the digits are classified right."""
    from sklearn.datasets import load_digits

    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images[:600] / 16
    labels = labels[:600]
    losses, nets = [], []
    for cls in (LBFGS, torch.optim.LBFGS):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)
        ).double()
        optimizer: Any = cls(net.parameters(), **options)

        def closure(net: Any = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item() for _ in range(4)])
        nets.append(net)

    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-6)
    assert losses[0][3] == pytest.approx(losses[1][3], rel=0.1)
    assert (nets[0](images).argmax(1) == labels).double().mean() > 0.98


def test_explain_says_that_lbfgs_is_written_by_hand() -> None:
    assert "by hand" in optgen.explain(LBFGS([torch.nn.Parameter(torch.ones(2))]))


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("tolerance_change", [-1.0, 0.0, 1e-9])
@pytest.mark.parametrize("gradient", ["zero", "missing", "tiny", "one"])
def test_a_negative_tolerance_grad_steps_as_in_torch(
    gradient: str, tolerance_change: float, search: str | None
) -> None:
    """With a negative `tolerance_grad`, both classes continue at a zero gradient."""
    results = []
    for cls in (LBFGS, torch.optim.LBFGS):
        param = torch.nn.Parameter(torch.tensor([0.3, -1.0], dtype=torch.float64))
        optimizer = cls(
            [param],
            max_iter=3,
            tolerance_grad=-1,
            tolerance_change=tolerance_change,
            line_search_fn=search,
        )

        def closure(param: Any = param, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            scale = {"zero": 0.0, "missing": 0.0, "tiny": 1e-200, "one": 1.0}[gradient]
            loss = (scale * param).sum()
            if gradient != "missing":
                loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        state = optimizer.state[param]
        results.append([*losses, *param.tolist(), state["n_iter"], state["func_evals"]])

    assert results[0] == pytest.approx(results[1], rel=1e-12)
