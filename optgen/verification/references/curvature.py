"""Steps of rules with the Hessian's diagonal as an extra input, each written from its paper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.problem import Problem
from optgen.verification.reference import State, by_parameter
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY, moments


def sophia(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Sophia: algorithm 3, with SophiaG's scale."""
    if state["given hessian"] is not None:
        state["hessian"] = 0.95 * state.get("hessian", 0) + 0.05 * state["given hessian"]
    state["exp_avg"] = 0.9 * state.get("exp_avg", 0) + 0.1 * g
    scale = 0.05 * 10 * state.get("hessian", torch.zeros_like(p)) + 1e-15
    return p - LR * DECAY * p - LR * (state["exp_avg"] / scale).clamp(-1, 1)


def adahessian(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaHessian: equations 9 to 12, with its authors' eps."""
    m, v = moments(g, state, (0.9, 0.98), state["given hessian"] ** 2)
    return p - LR * (m / (v.sqrt() ** 0.7 + 1e-4) + DECAY * p)


def hessian_in_every_third_step(
    problem: Problem, params: list[Tensor], step: int
) -> dict[str, Any]:
    """Return an estimate of the Hessian's diagonal in every third step, else None."""
    return {"hessian": None} if step % 3 else hessian_in_every_step(problem, params, step)


def hessian_in_every_step(problem: Problem, params: list[Tensor], step: int) -> dict[str, Any]:
    """Return an estimate of the Hessian's diagonal."""
    return {"hessian": problem.hessian_diagonals(params, step)}


CASES = (
    Case(
        "sophia",
        by_parameter(sophia),
        LR_AND_DECAY | {"betas": (0.9, 0.95), "rho": 0.05, "batch_size": 10},
        inputs=hessian_in_every_third_step,
    ),
    Case(
        "adahessian",
        by_parameter(adahessian),
        LR_AND_DECAY | {"betas": (0.9, 0.98), "hessian_power": 0.7},
        inputs=hessian_in_every_step,
    ),
)
