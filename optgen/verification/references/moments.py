"""Steps of rules that keep moments of gradients, each written from its paper or from code.

The first formulas are shared by several rules: the moments of Adam, RAdam's factor, decays by
half-lives. Then come rules with momentum, rules like Adam, rules with row and column states, and
rules with the Hessian's diagonal as an extra input.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from optgen.verification.case import MATRICES, Case, Problem, State, by_parameter

LR, DECAY = 0.01, 0.1
ONLY_LR = {"lr": LR}
LR_AND_DECAY = {**ONLY_LR, "weight_decay": DECAY}
"""Options of most cases."""


def moments(
    g: Tensor, state: State, betas: tuple[float, float], square: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Count the step, update both moments of Adam, and return them with bias correction."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg"] = betas[0] * state.get("exp_avg", 0) + (1 - betas[0]) * g
    square = g.square() if square is None else square
    state["exp_avg_sq"] = betas[1] * state.get("exp_avg_sq", 0) + (1 - betas[1]) * square
    return state["exp_avg"] / (1 - betas[0] ** t), state["exp_avg_sq"] / (1 - betas[1] ** t)


def radam_factor(t: int, beta2: float, min_length: float) -> float | None:
    """Return RAdam's factor at step `t`; None while its average is shorter than `min_length`."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    if length < min_length:
        return None
    ratio = (length - 4) / (longest - 4) * (length - 2) / (longest - 2)
    return math.sqrt(ratio * longest / length)


def half_life(beta: float) -> float:
    """Return the half-life of a decay in steps, less one, as apple/ml-ademamix counts it."""
    return math.log(0.5) / math.log(beta + 1e-8) - 1


def interpolated_decay(start: float, end: float, share: float) -> float:
    """Return the decay whose half-life is interpolated between those of `start` and `end`."""
    return 0.5 ** (1 / ((1 - share) * half_life(start) + share * half_life(end) + 1))


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


MOMENTUM = (
    Case("lion", by_parameter(lion), LR_AND_DECAY),
    Case("signum", by_parameter(signum), LR_AND_DECAY),
    Case("tiger", by_parameter(tiger), LR_AND_DECAY),
    Case("sgdw", by_parameter(sgdw), LR_AND_DECAY | {"momentum": 0.9, "nesterov": True}),
    Case("rmsprop_tf", by_parameter(rmsprop_tf), LR_AND_DECAY | {"momentum": 0.9}),
    Case("lars", by_parameter(lars), {"weight_decay": DECAY, "momentum": 0.9}),
)


def ademamix(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdEMAMix; as in the authors' code, beta3 and alpha grow for 20 steps."""
    state["t"] = t = state.get("t", 0) + 1
    warming_up = t < 20
    beta3, alpha = (
        (interpolated_decay(0.9, 0.9999, t / 20), 5 * t / 20) if warming_up else (0.9999, 5)
    )
    state["exp_avg_fast"] = 0.9 * state.get("exp_avg_fast", 0) + 0.1 * g
    state["exp_avg_slow"] = beta3 * state.get("exp_avg_slow", 0) + (1 - beta3) * g
    state["exp_avg_sq"] = 0.999 * state.get("exp_avg_sq", 0) + 0.001 * g * g
    mixed = state["exp_avg_fast"] / (1 - 0.9**t) + alpha * state["exp_avg_slow"]
    root = state["exp_avg_sq"].sqrt() / math.sqrt(1 - 0.999**t) + 1e-8
    return p - LR * (mixed / root + DECAY * p)


def simplified_ademamix(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Simplified AdEMAMix."""
    state["t"] = t = state.get("t", 0) + 1
    beta1 = interpolated_decay(0.9, 0.99, t / 20) if t < 20 else 0.99
    state["exp_avg"] = beta1 * state.get("exp_avg", 0) + g
    state["exp_avg_sq"] = 0.95 * state.get("exp_avg_sq", 0) + 0.05 * g * g
    weight = math.sqrt(1 - 0.95**t)
    update = (3 * g + state["exp_avg"]) / (state["exp_avg_sq"].sqrt() + 1e-8 * weight) * weight
    return p - LR * (update + DECAY * p)


def adopt(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of ADOPT: algorithm 2, with decoupled decay."""
    state["t"] = t = state.get("t", -1) + 1
    if t == 0:
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), g * g
        return p
    normed = g / state["exp_avg_sq"].sqrt().clamp(min=1e-6)
    state["exp_avg"] = 0.9 * state["exp_avg"] + 0.1 * normed.clamp(-(t**0.25), t**0.25)
    state["exp_avg_sq"] = 0.9999 * state["exp_avg_sq"] + 0.0001 * g * g
    return p * (1 - LR * DECAY) - LR * state["exp_avg"]


def mars(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of MARS; vectors take a step of AdamW with other hyperparameters."""
    last_grad, state["last_grad"] = state.get("last_grad", torch.zeros_like(p)), g
    if p.dim() != 2:
        m, v = moments(g, state, (0.9, 0.95))
        return p - LR * (0.2 * p + m / (v.sqrt() + 1e-8))
    c = g + 0.025 * (0.95 / 0.05) * (g - last_grad)
    m, v = moments(c / max(c.norm().item(), 1), state, (0.95, 0.99))
    return p - LR * (DECAY * p + m / (v.sqrt() + 1e-8))


def stable_adamw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of StableAdamW: algorithm 2, with the library's constants."""
    state["t"] = t = state.get("t", 0) + 1
    b1, b2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (0.9, 0.99))
    state["exp_avg"] = b1 * state.get("exp_avg", 0) + (1 - b1) * g
    state["exp_avg_sq"] = v = b2 * state.get("exp_avg_sq", 0) + (1 - b2) * g * g
    rate = LR / max(1.0, (g * g / v.clamp(min=1e-12)).mean().sqrt().item())
    return p * (1 - rate * DECAY) - rate * state["exp_avg"] / (v.sqrt() + 1e-6)


def adamc(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamC: algorithm 1, where LR is a fifth of the largest rate, 0.05."""
    m, v = moments(g, state, (0.9, 0.999))
    return p - LR**2 / 0.05 * DECAY * p - LR * m / (v.sqrt() + 1e-8)


def adabelief(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaBelief, rectified as in its authors' package."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg"] = m = 0.9 * state.get("exp_avg", 0) + 0.1 * g
    state["exp_avg_var"] = 0.99 * state.get("exp_avg_var", 0) + 0.01 * (g - m) ** 2 + 1e-16
    p, rate = p * (1 - LR * DECAY), LR / (1 - 0.9**t)
    factor = radam_factor(t, 0.99, 5)
    if factor is None:
        return p - rate * m
    root = state["exp_avg_var"].sqrt() + 1e-16
    return p - rate * factor * math.sqrt(1 - 0.99**t) * m / root


def plain_adabelief(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaBelief: algorithm 2."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg"] = m = 0.9 * state.get("exp_avg", 0) + 0.1 * g
    state["exp_avg_var"] = 0.999 * state.get("exp_avg_var", 0) + 0.001 * (g - m) ** 2 + 1e-8
    root = (state["exp_avg_var"] / (1 - 0.999**t)).sqrt() + 1e-8
    return p - LR * m / (1 - 0.9**t) / root


def yogi(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Yogi: algorithm 2, with Adam's corrections."""
    state["t"] = t = state.get("t", 0) + 1
    g = g + DECAY * p
    start = torch.full_like(p, 1e-6)
    state["exp_avg"] = 0.9 * state.get("exp_avg", start) + 0.1 * g
    v = state.get("exp_avg_sq", start)
    state["exp_avg_sq"] = v - 0.001 * torch.sign(v - g * g) * g * g
    root = state["exp_avg_sq"].sqrt() / math.sqrt(1 - 0.999**t) + 1e-3
    return p - LR / (1 - 0.9**t) * state["exp_avg"] / root


def grams(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Grams: algorithm 1, with AdamW's decay."""
    m, v = moments(g, state, (0.9, 0.999))
    return p * (1 - LR * DECAY) - LR * g.sign() * (m / (v.sqrt() + 1e-6)).abs()


def lamb(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of LAMB: algorithm 2, with Adam's corrections."""
    m, v = moments(g, state, (0.9, 0.999))
    u = m / (v.sqrt() + 1e-6) + DECAY * p
    return p - LR * p.norm() / u.norm() * u


def kahan_adamw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamW. In float64 nothing is compensated, so the compensation stays zero."""
    m, v = moments(g, state, (0.9, 0.999))
    state["compensation"] = torch.zeros_like(p)
    return p - LR * (m / (v.sqrt() + 1e-8) + DECAY * p)


def adam_mini(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adam-mini. Vectors have a second moment by element, matrices by row."""
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    key, square = ("v", g.square()) if p.dim() < 2 else ("r", g.square().mean(-1, keepdim=True))
    state[key] = 0.999 * state.get(key, 0) + 0.001 * square
    root = (state[key] / (1 - 0.999**t)).sqrt() + 1e-8
    return p * (1 - LR * DECAY) - LR * state["m"] / (1 - 0.9**t) / root


def adam_h(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamH."""
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.95 * state.get("v", 0) + 0.05 * g.square()
    u = state["m"] / (1 - 0.9**t) / ((state["v"] / (1 - 0.95**t)).sqrt() + 1e-8)
    moved = p - LR * u * (p.norm() / u.norm())
    return moved * (p.norm() / moved.norm())


WARMUP = {"beta3_warmup": 20, "alpha_warmup": 20}
ADAM_LIKE = (
    Case("ademamix", by_parameter(ademamix), LR_AND_DECAY | WARMUP | {"alpha": 5}),
    Case(
        "simplified_ademamix",
        by_parameter(simplified_ademamix),
        LR_AND_DECAY | {"alpha": 3, "beta1_warmup": 20},
    ),
    Case("adopt", by_parameter(adopt), LR_AND_DECAY | {"decouple": True}),
    Case("mars", by_parameter(mars), LR_AND_DECAY | {"weight_decay_1d": 0.2}),
    Case("stable_adamw", by_parameter(stable_adamw), LR_AND_DECAY),
    Case("adamc", by_parameter(adamc), LR_AND_DECAY | {"max_lr": 0.05}),
    Case("adabelief", by_parameter(adabelief), LR_AND_DECAY | {"betas": (0.9, 0.99)}),
    Case(
        "adabelief",
        by_parameter(plain_adabelief),
        ONLY_LR | {"rectify": False, "eps": 1e-8},
        label="not rectified",
    ),
    Case("yogi", by_parameter(yogi), LR_AND_DECAY),
    Case("grams", by_parameter(grams), LR_AND_DECAY),
    Case("lamb", by_parameter(lamb), LR_AND_DECAY),
    Case("kahan_adamw", by_parameter(kahan_adamw), LR_AND_DECAY),
    Case("adam_mini", by_parameter(adam_mini), LR_AND_DECAY),
    Case("adam_h", by_parameter(adam_h), ONLY_LR),
)


def adafactor(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adafactor: algorithms 4 and 5, with relative steps."""
    rate = min(1e-2, 1 / math.sqrt(state.get("t", 0) + 1))
    return factored_step(p, g, state, beta1=None, rate=rate, is_rate_relative=True)


def adafactor_with_momentum(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adafactor with a fixed rate and with momentum, as in the library."""
    return factored_step(p, g, state, beta1=0.9, rate=LR, is_rate_relative=False)


def factored_step(
    p: Tensor, g: Tensor, state: State, beta1: float | None, rate: float, is_rate_relative: bool
) -> Tensor:
    """Take a step of Adafactor; a relative rate is multiplied by the parameter's size."""
    state["t"] = t = state.get("t", 0) + 1
    beta2, square = 1 - t**-0.8, g * g + 1e-30
    if p.dim() > 1:
        for key, axis in (("exp_avg_sq_row", -1), ("exp_avg_sq_col", -2)):
            state[key] = beta2 * state.get(key, 0) + (1 - beta2) * square.mean(axis, keepdim=True)
        row, col = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        estimate = row / row.mean(-2, keepdim=True) * col
    else:
        state["exp_avg_sq"] = beta2 * state.get("exp_avg_sq", 0) + (1 - beta2) * square
        estimate = state["exp_avg_sq"]
    u = g * estimate.rsqrt()
    rate *= max(1e-3, p.square().mean().sqrt().item()) if is_rate_relative else 1
    u = rate * u / max(1.0, u.square().mean().sqrt().item())
    if beta1 is not None:
        state["exp_avg"] = u = beta1 * state.get("exp_avg", 0) + (1 - beta1) * u
    return p - rate * DECAY * p - u


def came(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of CAME: algorithm 2, with the authors' constants."""

    def inverse_root(key: str, x: Tensor, beta: float) -> Tensor:
        """Average the rows and columns of x; return the inverse root of their product."""
        for side, axis in (("row", -1), ("col", -2)):
            mean = x.mean(axis, keepdim=True)
            state[key + side] = beta * state.get(key + side, 0) + (1 - beta) * mean
        row, col = state[key + "row"], state[key + "col"]
        return (row / row.mean(-2, keepdim=True)).rsqrt() * col.rsqrt()

    u = g * inverse_root("exp_avg_sq_", g * g + 1e-30, 0.999)
    u = u / max(1.0, u.square().mean().sqrt().item())
    state["exp_avg"] = m = 0.9 * state.get("exp_avg", 0) + 0.1 * u
    return p - LR * DECAY * p - LR * m * inverse_root("exp_avg_res_", (u - m) ** 2 + 1e-16, 0.9999)


def row_wise_adagrad(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of row-wise Adagrad, with the library's weight decay and rate decay."""
    state["t"] = t = state.get("t", 0) + 1
    g = g + DECAY * p
    state["sum"] = state.get("sum", 0.2) + g.square().mean(1, keepdim=True)
    return p - LR / (1 + (t - 1) * 0.1) * g / (state["sum"].sqrt() + 1e-10)


ADAGRAD_OPTIONS = {"lr_decay": 0.1, "initial_accumulator_value": 0.2}
FACTORED = (
    Case("adafactor_hf", by_parameter(adafactor), {"weight_decay": DECAY}),
    Case(
        "adafactor_hf",
        by_parameter(adafactor_with_momentum),
        LR_AND_DECAY | {"beta1": 0.9, "scale_parameter": False},
        label="with momentum",
    ),
    Case("came", by_parameter(came), LR_AND_DECAY, shapes=MATRICES),
    Case(
        "row_wise_adagrad",
        by_parameter(row_wise_adagrad),
        LR_AND_DECAY | ADAGRAD_OPTIONS,
        shapes=MATRICES,
    ),
)


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


CURVATURE = (
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

CASES = (*MOMENTUM, *ADAM_LIKE, *FACTORED, *CURVATURE)
