"""Steps of rules with momentum, each written from its paper or from code."""

from __future__ import annotations

import torch
from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import Values, alone
from optgen.verification.references.moments import BOTH, DECAY, LR


def lion(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Lion: algorithm 2."""
    old = own.get("exp_avg", torch.zeros_like(p))
    own["exp_avg"] = 0.99 * old + 0.01 * g
    return p - LR * (torch.sign(0.9 * old + 0.1 * g) + DECAY * p)


def signum(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Signum: algorithm 2, with decoupled decay."""
    own["momentum_buffer"] = 0.9 * own.get("momentum_buffer", 0) + 0.1 * g
    return p * (1 - LR * DECAY) - LR * own["momentum_buffer"].sign()


def tiger(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Tiger, as the README of its code has it."""
    own["exp_avg"] = 0.965 * own.get("exp_avg", 0) + 0.035 * g
    return p - LR * (own["exp_avg"].sign() + DECAY * p)


def sgdw(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of SGDW: algorithm 1, with the library's Nesterov momentum."""
    old = own.get("momentum_buffer")
    own["momentum_buffer"] = g if old is None else 0.9 * old + g
    return p * (1 - LR * DECAY) - LR * (g + 0.9 * own["momentum_buffer"])


def rmsprop_tf(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of RMSprop with momentum, as TensorFlow has it."""
    g = g + DECAY * p
    v = own.get("square_avg", torch.ones_like(p))
    own["square_avg"] = v + 0.1 * (g * g - v)
    rate = LR / (own["square_avg"] + 1e-10).sqrt()
    own["momentum_buffer"] = 0.9 * own.get("momentum_buffer", 0) + rate * g
    return p - own["momentum_buffer"]


def lars(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of LARS: algorithm 1, with the library's order of rate and sum."""
    rate = 1e-3 * p.norm() / (g.norm() + DECAY * p.norm() + 1e-8)
    u = rate * (g + DECAY * p)
    own["momentum_buffer"] = 0.9 * own.get("momentum_buffer", 0) + u
    return p - own["momentum_buffer"]


CASES = (
    Case("lion", alone(lion), BOTH),
    Case("signum", alone(signum), BOTH),
    Case("tiger", alone(tiger), BOTH),
    Case("sgdw", alone(sgdw), BOTH | {"momentum": 0.9, "nesterov": True}),
    Case("rmsprop_tf", alone(rmsprop_tf), BOTH | {"momentum": 0.9}),
    Case("lars", alone(lars), {"weight_decay": DECAY, "momentum": 0.9}),
)
