"""Steps of rules with momentum, with norms of parameters, or on spheres, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.ir.random_numbers import positions, random
from optgen.verification.case import MATRICES, Case, State, by_parameter, over_all_parameters
from optgen.verification.references.adam_descendants import correlations
from optgen.verification.references.changed_moments import FLAT_SHAPES
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY, ONLY_LR, moments


def without_radial_part(p: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, float]:
    """Project a matrix's update as AdamP does, by rows or as a whole; return a share of decay."""
    if p.dim() < 2:
        return u, 1.0
    for x, grad, update in ((p, g, u), (p.flatten()[None], g.flatten()[None], u.flatten()[None])):
        cosines = torch.nn.functional.cosine_similarity(grad, x, dim=1).abs()
        if cosines.max().item() < 0.9 / math.sqrt(x.size(1)):
            unit = x / (x.norm(dim=1, keepdim=True) + 1e-8)
            return (update - unit * (unit * update).sum(1, keepdim=True)).reshape(p.shape), 0.1
    return u, 1.0


def adamp(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamP: algorithm 2, with Nesterov momentum."""
    m, v = moments(g, state, (0.9, 0.999))
    ahead = 0.9 * m + 0.1 * g / (1 - 0.9 ** state["t"])
    u, share = without_radial_part(p, g, ahead / (v.sqrt() + 1e-8))
    return p * (1 - LR * DECAY * share) - LR * u


def sgdp(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SGDP: algorithm 1."""
    state["b"] = 0.9 * state.get("b", 0) + g
    u, share = without_radial_part(p, g, state["b"])
    return p * (1 - LR * DECAY * share / 0.1) - LR * u


def qhm(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of QHM: equations 3 and 4."""
    g = g + DECAY * p
    state["m"] = 0.99 * state.get("m", 0) + 0.01 * g
    return p - LR * (0.3 * g + 0.7 * state["m"])


def aggmo(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AggMo: equation 2."""
    velocities = state.get("v", [torch.zeros_like(p)] * 3)
    state["v"] = [
        beta * v - (g + DECAY * p) for beta, v in zip((0, 0.9, 0.99), velocities, strict=True)
    ]
    return p + LR / 3 * torch.stack(state["v"]).sum(0)


def novograd(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of NovoGrad: algorithm 1, with averages of normalised gradients."""
    square = g.square().sum().item()
    state["v"] = 0.98 * state.get("v", square) + 0.02 * square
    u = g / (math.sqrt(state["v"]) + 1e-8) + DECAY * p
    state["m"] = 0.95 * state.get("m", 0) + 0.05 * u
    return p - LR * state["m"]


def fromage(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Fromage: algorithm 1, with the authors' bound on weights."""
    limit = state.setdefault("limit", 1.02 * p.norm().item())
    p = (p - LR * p.norm() / g.norm() * g) / math.hypot(1, LR)
    return p * min(1.0, limit / p.norm().item())


def pid(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of PID: equation 15, with the library's weights."""
    g = g + DECAY * p
    state["i"] = 0.9 * state.get("i", 0) + g
    state["d"] = 0.9 * state.get("d", 0) + 0.1 * (g - state.get("old", g))
    state["old"] = g
    return p - LR * (g + 5 * state["i"] + 10 * state["d"])


def srmm(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SRMM: algorithm 1, with a memory of 8 steps."""
    w = 1 / math.sqrt(state["step"] % 8 + 1)
    state["g"] = (1 - w) * state.get("g", 0) + w * g
    state["x"] = (1 - w) * state.get("x", 0) + w * p - LR * state["g"]
    moved: Tensor = state["x"]
    return moved


def focus(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of FOCUS: algorithm 1, with decay of the averaged weights."""
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["x"] = 0.99 * state.get("x", 0) + 0.01 * p
    x = state["x"] / (1 - 0.99 ** state["step"])
    p = p - LR * DECAY * x
    return p - LR * (state["m"].sign() + 0.2 * (p - x).sign())


def pnm(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of PNM: algorithm 1."""
    older, newest = state.get("momenta", (torch.zeros_like(p), torch.zeros_like(p)))
    state["momenta"] = (newest, 0.81 * older + 0.19 * g)
    mixed = 2 * state["momenta"][1] - newest
    return p * (1 - LR * DECAY) - LR * mixed / math.sqrt(5)


def msvag(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of M-SVAG: algorithm 2."""
    beta, t = 0.9, state["step"]
    state["m"] = beta * state.get("m", 0) + (1 - beta) * g
    state["v"] = beta * state.get("v", 0) + (1 - beta) * g * g
    m, v = state["m"] / (1 - beta**t), state["v"] / (1 - beta**t)
    rho = (1 - beta) * (1 + beta**t) / (1 + beta) / (1 - beta**t)
    rho = min(rho, 0.9999)
    s = (v - m * m) / (1 - rho)
    return p - LR * (m * m / (m * m + rho * s)).clamp(0, 1) * m


def ftrl(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of FTRL-Proximal: algorithm 1."""
    n = state.get("n", torch.zeros_like(p))
    state["n"] = n + g * g
    state["z"] = state.get("z", 0) + g - (state["n"].sqrt() - n.sqrt()) / LR * p
    shrunk = (state["z"].abs() - 0.5).clamp(min=0) * state["z"].sign()
    return -shrunk / ((0.1 + state["n"].sqrt()) / LR + 0.2)


def tam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of TAM: algorithm 1, whose correlations are normalised along rows."""
    b = state.get("b", g)
    state["s"] = 0.9 * state.get("s", 0) + 0.1 * correlations(b, g)
    state["b"] = 0.9 * b + (0.5 + state["s"] / 2 + 1e-8) * g
    return p * (1 - LR * DECAY) - LR * state["b"]


def racs(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of RACS: algorithm 1, with one sweep of its fixed point."""
    state["s"] = 0.9 * state.get("s", 0.0) + 0.1 * g.square().mean(1, True)
    state["q"] = 0.9 * state.get("q", 1.0) + 0.1 * g.square().mean(0, True)
    u = g * (state["s"] + 1e-8).rsqrt() * (state["q"] + 1e-8).rsqrt()
    length = u.norm().item()
    if "theta" in state:
        u = u / max(length / (state["theta"] + 1e-8) / 1.01, 1.0)
    state["theta"] = u.norm().item()
    return p * (1 - LR * DECAY) - LR * 0.05 * u


def accsgd(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AccSGD: algorithm 3 of its paper, with the code's names."""
    g = g + DECAY * p
    alpha = 1 - 0.49 * 10 / 1000
    state["w"] = alpha * state.get("w", p) + (1 - alpha) * (p - LR * 1000 / 0.7 * g)
    zeta = 0.7 / (0.7 + 1 - alpha)
    return zeta * (p - LR * g) + (1 - zeta) * state["w"]


def sm3(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SM3-II: algorithm 2, whose sets are rows and columns."""
    if p.dim() < 2:
        state["v"] = v = state.get("v", 0) + g * g
    else:
        old = [state.get(key, torch.zeros_like(p)) for key in ("rows", "cols")]
        v = torch.min(old[0], old[1]) + g * g
        state["rows"], state["cols"] = v.amax(-1, keepdim=True), v.amax(-2, keepdim=True)
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g / v.sqrt()
    return p - LR * state["m"]


def optimistic_sgd(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of optimistic gradient descent: equation 2, with two weights."""
    old, state["old"] = state.get("old", g), g
    return p - LR * ((0.9 + 0.5) * g - 0.5 * old)


def distance_rule(
    params: list[Tensor], gradients: list[Tensor], state: State, is_weighted: bool
) -> list[Tensor]:
    """Take a step of DoG, or of DoWG, which weights gradients by squared distances."""
    start = state.setdefault("start", params)
    flat = torch.cat([p.flatten() for p in start])
    moved = torch.cat([p.flatten() for p in params]) - flat
    first = 1e-4 if is_weighted else (1e-3 * (1 + flat.norm().item())) ** 2
    state["r"] = max(state.get("r", first), moved.square().sum().item())
    square = torch.cat([g.flatten() for g in gradients]).square().sum().item()
    state["v"] = state.get("v", 0) + square * (state["r"] if is_weighted else 1)
    dog_rate = math.sqrt(state["r"] / (state["v"] + 1e-8))
    rate = state["r"] / (math.sqrt(state["v"]) + 1e-4) if is_weighted else dog_rate
    return [p - rate * g for p, g in zip(params, gradients, strict=True)]


def dog(params: list[Tensor], gradients: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of DoG: equation 2 and 3."""
    return distance_rule(params, gradients, state, is_weighted=False)


def dowg(params: list[Tensor], gradients: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of DoWG: algorithm 1."""
    return distance_rule(params, gradients, state, is_weighted=True)


def cocob(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of COCOB-Backprop: algorithm 2."""
    start, c = state.setdefault("start", p), -g
    state["scale"] = torch.max(state.get("scale", torch.full_like(p, 1e-8)), c.abs())
    state["sum"] = state.get("sum", 0) + c.abs()
    state["reward"] = (state.get("reward", 0) + (p - start) * c).clamp(min=0)
    state["theta"] = state.get("theta", 0) + c
    size = torch.max(state["sum"] + state["scale"], 5 * state["scale"])
    return start + state["theta"] / (state["scale"] * size) * (state["scale"] + state["reward"])


def nero(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Nero: algorithm 1, with eps in the divisor."""
    t, axes = state["step"], (-1,) if p.dim() > 1 else ()

    def balanced(x: Tensor) -> Tensor:
        if x.dim() < 2:
            return x
        x = x - x.mean(-1, keepdim=True)
        return x / (x.norm(dim=-1, keepdim=True) + 1e-8)

    if t == 1:
        p = balanced(p)
        state["scale"] = (p.norm(dim=-1) if axes else p.abs()).mean().item() or 0.01
    square = g.square().sum(axes, keepdim=True) if axes else g.square()
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * square
    root = (state["v"] / (1 - 0.999**t)).sqrt() + 1e-8
    return balanced(p - LR * state["scale"] * g / root)


def mano(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Mano: columns in odd steps, rows in even ones."""
    axis = (state["step"] - 1) % 2
    state["m"] = 0.95 * state.get("m", 0) + g
    u = g + 0.95 * state["m"]
    w = torch.nn.functional.normalize(p, dim=axis, eps=1e-8)
    u = u - w * (u * w).sum(axis, keepdim=True)
    u = torch.nn.functional.normalize(u, dim=axis, eps=1e-8)
    return p * (1 - LR * DECAY) - LR * 0.2 * p.size(axis) ** 0.5 * u


def vsgd(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of VSGD: algorithm 1, with the library's decoupled decay."""
    t, old = state["step"], state.get("m", torch.zeros_like(p))
    shape, rates = 2e-8 + 1.0001, (2e-8, 6e-7)
    scale = shape - 1 if t == 1 else shape
    precision, hat = (x / scale for x in state.get("b", rates))
    m = state["m"] = (hat * old + precision * g) / (precision + hat)
    variance = precision * hat / (precision + hat)
    square = m * m + variance
    new = (rates[0] + variance + (m - old) ** 2, rates[1] + variance + (g - m) ** 2)
    weights = (t**-0.81, t**-0.9)
    pairs = zip(state.get("b", rates), new, weights, strict=True)
    state["b"] = [(1 - w) * b + w * n for b, n, w in pairs]
    return p * (1 - LR * DECAY) - LR * m / (square.sqrt() + 1e-8)


def sgd_sai(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SGD-SaI: algorithm 1, with the code's first momentum."""
    if state["step"] == 1:
        deviation = g.std().item() + 1e-8 if g.numel() > 1 else 1.0
        state["rate"], state["b"] = g.norm().item() / deviation, g
    else:
        state["b"] = 0.9 * state["b"] + 0.1 * g
    return p * (1 - LR * DECAY) - LR * state["rate"] * state["b"]


def apollo_dqn(p: Tensor, g: Tensor, state: State, belief: bool = False) -> Tensor:
    """Take a step of Apollo of 2020: algorithm 1, with a warmup of 10 steps."""
    t = state["step"]
    rate = LR if t > 10 else (LR - 1e-5) * (t - 1) / 10 + 1e-5
    g = g if belief else g + DECAY * p
    m, b, d = (state.get(key, torch.zeros_like(p)) for key in ("m", "b", "d"))
    alpha, change = 0.1 / (1 - 0.9**t), g - m
    least = change.abs().max().item() if belief else 0.01
    eps = 1e-4 if belief else 1e-4 / 0.01
    size = torch.linalg.vector_norm(d, 4) + eps
    d = d / size
    state["m"] = m + alpha * change
    state["b"] = b - (alpha * (change * d).sum() / size + (b * d * d).sum()) * d * d
    root = state["b"].abs().clamp(min=least) + (eps / alpha if belief else 0)
    state["d"] = state["m"] / root + (DECAY / root.mean() * p if belief else 0)
    return p - rate * state["d"]


def apollo_dqn_with_belief(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Apollo of 2020 with the bound `belief` and the decay `stable`."""
    return apollo_dqn(p, g, state, belief=True)


def stosignsgd(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of StoSignSGD: algorithm 3, with the numbers that our rule draws."""
    m = state["m"] = 0.9 * state.get("m", torch.zeros_like(p)) + 0.1 * g
    largest = state["largest"] = torch.maximum(state.get("largest", m.abs()), m.abs())
    numbers = (torch.tensor(float(n)) for n in (5, state["index"], state["step"], 0))
    noise = random(positions(p), *numbers)
    return p * (1 - LR * DECAY) - LR * (m + largest * (2 * noise - 1)).sign()


def gravity(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Gravity: algorithm 1, with the numbers that our rule draws."""
    t = state["step"]
    if t == 1:
        key = (5, state["index"], t)
        near, turn = (
            random(positions(p), *(torch.tensor(float(n)) for n in (*key, call))) for call in (0, 1)
        )
        state["v"] = 0.1 / LR * (-2 * (1 - near).log()).sqrt() * (2 * math.pi * turn).cos()
    zeta = g / (1 + (g * g.abs().max()).square())
    beta = (0.9 * t + 1) / (t + 2)
    state["v"] = beta * state["v"] + (1 - beta) * zeta
    return p - LR * state["v"]


PROJECTED = {"weight_decay": DECAY, "delta": 0.9, "lr": LR}
"""A large bound on the cosine, so that most updates are projected."""
CASES = (
    Case("adamp", by_parameter(adamp), PROJECTED | {"nesterov": True}, shapes=FLAT_SHAPES),
    Case("sgdp", by_parameter(sgdp), PROJECTED | {"momentum": 0.9}, shapes=FLAT_SHAPES),
    Case("nero", by_parameter(nero), ONLY_LR, shapes=FLAT_SHAPES),
    Case("mano", by_parameter(mano), LR_AND_DECAY | {"nesterov": True}, shapes=MATRICES[:4]),
    Case("vsgd", by_parameter(vsgd), LR_AND_DECAY),
    Case("sgd_sai", by_parameter(sgd_sai), LR_AND_DECAY),
    Case("apollo_dqn", by_parameter(apollo_dqn), LR_AND_DECAY | {"warmup": 10}),
    Case(
        "apollo_dqn",
        by_parameter(apollo_dqn_with_belief),
        LR_AND_DECAY | {"warmup": 10, "rebound": "belief", "weight_decay_type": "stable"},
        label="belief",
    ),
    Case("stosignsgd", by_parameter(stosignsgd), LR_AND_DECAY | {"seed": 5}),
    Case("gravity", by_parameter(gravity), ONLY_LR | {"alpha": 0.1, "seed": 5}),
    Case("qhm", by_parameter(qhm), LR_AND_DECAY | {"momentum": 0.99}),
    Case("aggmo", by_parameter(aggmo), LR_AND_DECAY),
    Case("novograd", by_parameter(novograd), LR_AND_DECAY | {"grad_averaging": True}),
    Case("fromage", by_parameter(fromage), ONLY_LR | {"p_bound": 1.02}),
    Case("pid", by_parameter(pid), LR_AND_DECAY | {"momentum": 0.9}),
    Case("srmm", by_parameter(srmm), ONLY_LR | {"memory_length": 8}),
    Case(
        "focus",
        by_parameter(focus),
        LR_AND_DECAY | {"betas": (0.9, 0.99), "gamma": 0.2},
    ),
    Case("pnm", by_parameter(pnm), LR_AND_DECAY),
    Case("msvag", by_parameter(msvag), ONLY_LR),
    Case(
        "ftrl",
        by_parameter(ftrl),
        ONLY_LR | {"beta": 0.1, "lambda_1": 0.5, "lambda_2": 0.2},
    ),
    Case("tam", by_parameter(tam), LR_AND_DECAY, shapes=FLAT_SHAPES),
    Case("racs", by_parameter(racs), LR_AND_DECAY, shapes=MATRICES),
    Case("accsgd", by_parameter(accsgd), LR_AND_DECAY),
    Case("sm3", by_parameter(sm3), ONLY_LR),
    Case("optimistic_sgd", by_parameter(optimistic_sgd), ONLY_LR | {"alpha": 0.9, "beta": 0.5}),
    Case("dog", over_all_parameters(dog), {"reps_rel": 1e-3}),
    Case("dowg", over_all_parameters(dowg), {}),
    Case("cocob", by_parameter(cocob), {"alpha": 5.0}),
)
