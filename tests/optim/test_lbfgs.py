"""Test that LBFGS takes torch's path: parameters, losses and calls of the closure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim.lbfgs_problems import (
    assert_torchs_path,
    distance,
    logistic,
    quadratic,
    rosenbrock,
    run,
    start,
)
from torch_inputs import optim_db

import optgen
from optgen.optim import LBFGS

[INFO] = [info for info in optim_db if info.optim_cls is torch.optim.LBFGS]
TORCHS: list[dict[str, Any]] = [case.kwargs for case in INFO.optim_inputs_func(device="cpu")]
OWN: list[dict[str, Any]] = [
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


@pytest.mark.parametrize(("problem", "size"), [(rosenbrock, 2), (quadratic, 10), (logistic, 60)])
@pytest.mark.parametrize("options", [*TORCHS, *OWN], ids=label)
def test_lbfgs_takes_torchs_path(options: dict[str, Any], problem: Any, size: int) -> None:
    assert_torchs_path(problem(size), start(size).detach(), STEPS, **options)


@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe"}], ids=label)
def test_maximizing_is_minimizing_the_negative(options: dict[str, Any]) -> None:

    down = run(LBFGS, logistic(5), start(5), **options)
    up = run(LBFGS, logistic(5), start(5), maximize=True, **options)
    up.sign = -1.0

    for found, expected in zip(up.steps(3), down.steps(3), strict=True):
        assert found[0] == -expected[0]
        assert found[1] == expected[1]
        assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("fused", [None, False])
def test_foreach_and_fused_have_no_effect(foreach: bool | None, fused: bool | None) -> None:
    plain = run(LBFGS, rosenbrock(10), start(10)).steps(2)[-1]
    flagged = run(LBFGS, rosenbrock(10), start(10), foreach=foreach, fused=fused).steps(2)[-1]

    assert torch.equal(plain[2], flagged[2])


def test_float32_ends_where_float64_does() -> None:
    wide = run(LBFGS, rosenbrock(10), start(10), line_search_fn="strong_wolfe").steps(10)
    narrow = run(LBFGS, rosenbrock(10), start(10, torch.float32), line_search_fn="strong_wolfe")
    ended = narrow.steps(10)

    assert wide[-1][0] < 1e-9
    assert distance(ended[-1][2].double(), wide[-1][2]) < 1e-3


@pytest.mark.parametrize("options", [{"lr": 0.3}, {"line_search_fn": "strong_wolfe"}], ids=label)
def test_a_net_learns_digits_as_with_torchs(options: dict[str, Any]) -> None:
    """On full batches of images, losses are torch's, and nearly all digits end up right."""
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
@pytest.mark.parametrize("change", [-1.0, 0.0, 1e-9])
@pytest.mark.parametrize("gradient", ["zero", "missing", "tiny", "one"])
def test_a_negative_tolerance_of_gradients_steps_as_in_torch(
    gradient: str, change: float, search: str | None
) -> None:
    """With a negative tolerance torch continues at a zero gradient; so does ours."""
    found = []
    for cls in (LBFGS, torch.optim.LBFGS):
        param = torch.nn.Parameter(torch.tensor([0.3, -1.0], dtype=torch.float64))
        optimizer = cls(
            [param], max_iter=3, tolerance_grad=-1, tolerance_change=change, line_search_fn=search
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
        found.append([*losses, *param.tolist(), state["n_iter"], state["func_evals"]])

    assert found[0] == pytest.approx(found[1], rel=1e-12)
