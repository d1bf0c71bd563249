"""Steps of rules with momentum, each written from its paper or from code."""

from __future__ import annotations

import torch
from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import State, by_parameter
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY


def lion(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Lion: algorithm 2."""
    old = state.get("exp_avg", torch.zeros_like(p))
    state["exp_avg"] = 0.99 * old + 0.01 * g
    return p - LR * (torch.sign(0.9 * old + 0.1 * g) + DECAY * p)


def signum(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Signum: algorithm 2, with decoupled decay."""
    state["momentum_buffer"] = 0.9 * state.get("momentum_buffer", 0) + 0.1 * g
    return p * (1 - LR * DECAY) - LR * state["momentum_buffer"].sign()


def tiger(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Tiger, as the README of its code has it."""
    state["exp_avg"] = 0.965 * state.get("exp_avg", 0) + 0.035 * g
    return p - LR * (state["exp_avg"].sign() + DECAY * p)


def sgdw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SGDW: algorithm 1, with the library's Nesterov momentum."""
    old = state.get("momentum_buffer")
    state["momentum_buffer"] = g if old is None else 0.9 * old + g
    return p * (1 - LR * DECAY) - LR * (g + 0.9 * state["momentum_buffer"])


def rmsprop_tf(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of RMSprop with momentum, as TensorFlow has it."""
    g = g + DECAY * p
    v = state.get("square_avg", torch.ones_like(p))
    state["square_avg"] = v + 0.1 * (g * g - v)
    rate = LR / (state["square_avg"] + 1e-10).sqrt()
    state["momentum_buffer"] = 0.9 * state.get("momentum_buffer", 0) + rate * g
    return p - state["momentum_buffer"]


def lars(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of LARS: algorithm 1; momentum adds up scaled gradients, as in the library."""
    rate = 1e-3 * p.norm() / (g.norm() + DECAY * p.norm() + 1e-8)
    u = rate * (g + DECAY * p)
    state["momentum_buffer"] = 0.9 * state.get("momentum_buffer", 0) + u
    return p - state["momentum_buffer"]


CASES = (
    Case("lion", by_parameter(lion), LR_AND_DECAY),
    Case("signum", by_parameter(signum), LR_AND_DECAY),
    Case("tiger", by_parameter(tiger), LR_AND_DECAY),
    Case("sgdw", by_parameter(sgdw), LR_AND_DECAY | {"momentum": 0.9, "nesterov": True}),
    Case("rmsprop_tf", by_parameter(rmsprop_tf), LR_AND_DECAY | {"momentum": 0.9}),
    Case("lars", by_parameter(lars), {"weight_decay": DECAY, "momentum": 0.9}),
)
