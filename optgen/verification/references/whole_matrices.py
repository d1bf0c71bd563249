"""Steps of rules on whole matrices, each written from its authors' code or from formulas."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from optgen.verification.case import MATRICES, Case, Rule, State, by_parameter
from optgen.verification.references.low_rank import draw_normal


def symmetric_power(x: Tensor, exponent: float, eps: float = 0.0) -> Tensor:
    """Return a power of a symmetric positive matrix, after adding eps to its eigenvalues."""
    u, s, v = torch.linalg.svd(x + eps * torch.eye(len(x), dtype=x.dtype))
    return u @ (s**exponent).diag() @ v


def by_matrix(rule: Rule, p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of a rule with each matrix of a stack."""
    matrix_states = state.setdefault("matrices", [{} for _ in p])
    for matrix_state in matrix_states:
        matrix_state["step"] = state["step"]
    return torch.stack([rule(*matrix) for matrix in zip(p, g, matrix_states, strict=True)])


def soap(p: Tensor, g: Tensor, state: State, largest: int = 10000) -> Tensor:
    """Take a step of SOAP; a tensor of more than two axes is a stack of matrices."""
    if p.ndim > 2:
        return by_matrix(partial(soap, largest=largest), p, g, state)
    k, sides = state["step"] - 1, [s for s in (0, 1) if p.ndim == 2 and p.shape[s] <= largest]
    grams = {side: g @ g.T if side == 0 else g.T @ g for side in sides}
    if k == 0:
        state |= {"m": 0 * g, "v": 0 * g, "grams": {s: 0.05 * x for s, x in grams.items()}}
        state["bases"] = {s: torch.linalg.eigh(x)[1].flip(1) for s, x in state["grams"].items()}
        return p

    def rotate(x: Tensor, back: bool) -> Tensor:
        """Rotate a matrix into the bases, or back."""
        for side in sides:
            basis = state["bases"][side].T if back else state["bases"][side]
            x = basis.T @ x if side == 0 else x @ basis
        return x

    state["m"] = 0.95 * state["m"] + 0.05 * g
    state["v"] = 0.95 * state["v"] + 0.05 * rotate(g, back=False) ** 2
    u = rotate(rotate(state["m"], back=False) / (state["v"].sqrt() + 1e-8), back=True)
    p = p - 3e-3 * (1 - 0.95**k) ** 0.5 / (1 - 0.95**k) * u
    p = p - 3e-3 * 0.01 * p
    for side in sides:
        gram = state["grams"][side] = 0.95 * state["grams"][side] + 0.05 * grams[side]
        if k % 10 == 0:
            basis = state["bases"][side]
            order = torch.argsort(torch.diag(basis.T @ gram @ basis), descending=True)
            state["v"] = state["v"].index_select(side, order)
            state["bases"][side] = torch.linalg.qr(gram @ basis[:, order])[0]
    return p


def bounded(u: Tensor) -> Tensor:
    """Return an update that is not longer than an orthogonal matrix of its shape."""
    return u * (min(u.shape) ** 0.5 / torch.linalg.matrix_norm(u)).clamp(max=1)


def shampoo(p: Tensor, g: Tensor, state: State, every: int = 1) -> Tensor:
    """Take a step of Shampoo: algorithm 1; vectors take a step of Adagrad.

    If roots are kept, the length of updates is bounded.
    """
    if p.ndim > 2:
        return by_matrix(partial(shampoo, every=every), p, g, state)
    if p.ndim < 2:
        state["s"] = state.get("s", 0) + g * g
        return p - 0.1 * g / (state["s"] + 1e-4).sqrt()
    u = g
    for side, x in enumerate((g, g.T)):
        start = 1e-4 * torch.eye(len(x), dtype=x.dtype)
        gram = state[side] = state.get(side, start) + x @ x.T
        if state["step"] % every == 1 % every:
            state["root", side] = symmetric_power(gram, -1 / 4)
        root = state["root", side]
        u = root @ u if side == 0 else u @ root
    return p - 0.1 * (u if every == 1 else bounded(u))


def one_sided_shampoo(p: Tensor, g: Tensor, state: State, every: int) -> Tensor:
    """Take a step of one-sided Shampoo, with Adam's momentum and corrections.

    If roots are kept, the length of updates is bounded.
    """
    t = state["step"]
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["r"] = 0.99 * state.get("r", 0) + 0.01 * g.T @ g
    if t % every == 1 % every:
        state["b"] = symmetric_power(state["r"] / (1 - 0.99**t), -1 / 2, 1e-3)
    u = state["m"] / (1 - 0.9**t) @ state["b"]
    return p - 1e-3 * (u if every == 1 else bounded(u))


def kl_soap(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of KL-SOAP."""
    grads, t = (g, g.T), state["step"]
    if t == 1:
        state["grams"] = [0.02 * x @ x.T / x.size(1) for x in grads]
        state["bases"] = [torch.linalg.eigh(x)[1].flip(1) for x in state["grams"]]
        state["values"] = [torch.full((len(x),), 0.1, dtype=x.dtype) for x in grads]
        state["m"] = state["v"] = 0 * g
        return p
    left, right = state["bases"]
    rotated = left.T @ g @ right
    state["m"] = 0.9 * state["m"] + 0.1 * rotated
    state["v"] = 0.98 * state["v"] + 0.02 * rotated**2
    p = (p - 1e-2 * left @ (state["m"] / (state["v"].sqrt() + 1e-8)) @ right.T) * (1 - 1e-2 * 0.01)
    values = []
    for side, x in enumerate(grads):
        scaled_other_basis = state["bases"][1 - side] / state["values"][1 - side].sqrt()
        white = x @ scaled_other_basis
        state["grams"][side] = 0.98 * state["grams"][side] + 0.02 * white @ white.T / x.size(1)
        new_values = ((state["bases"][side].T @ white) ** 2).mean(1)
        min_value = max(10, min(len(x), 4000)) ** -2
        values.append((0.98 * state["values"][side] + 0.02 * new_values).clamp(min=min_value))
    state["values"] = values
    if (t - 1) % 10 == 0:
        pairs = zip(state["grams"], state["bases"], strict=True)
        state["bases"] = [torch.linalg.qr(gram @ basis)[0] for gram, basis in pairs]
        rotations = [new.T @ old for new, old in zip(state["bases"], (left, right), strict=True)]
        state["m"] = rotations[0] @ state["m"] @ rotations[1].T
    return p


def kron(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Kron, which is KWNS4 of psgd_torch, with exact spectral norms."""
    t = state["step"]
    m = state["m"] = torch.lerp(state.get("m", 0 * g), g, 1 - min((t - 1) / t, 0.9))
    left, right = state.get("q", [torch.eye(n, dtype=p.dtype) for n in p.shape])
    noise = draw_normal(*p.shape, seed=0, stream=state["index"], step=t)
    x = left.T @ left @ (m + (1e-9 + 2**-24 * m.abs()) * noise) @ right.T @ right
    bounds = state.setdefault("bounds", [0.0, 0.0])
    factors = []
    for side, (q, y) in enumerate([(left, x @ x.T), (right, x.T @ x)]):
        other_size = p.size(1 - side)
        bound = torch.linalg.matrix_norm(y, 2).item() + other_size
        bounds[side] = max(0.9 * bounds[side] + 0.1 * bound, bound)
        factors.append(procrustes(q - 0.5 / bounds[side] * (y @ q - other_size * q)))
    left, right = factors
    u = left.T @ left @ m @ right.T @ right
    u = (u * min(2 / u.square().mean().sqrt().item(), 1)).clamp(-10, 10)
    if t > 1 and t % 100 == 1:
        balance = (right.abs().max() / left.abs().max()).sqrt()
        left, right = left * balance, right / balance
    state["q"] = left, right
    return p * (1 - 0.1 * 0.05) - 0.1 * u


def procrustes(q: Tensor) -> Tensor:
    """Rotate a factor towards a symmetric matrix, as psgd_torch does."""
    r = q.T - q
    r = r / (torch.linalg.matrix_norm(r, 2) + 2.0**-126)
    first, second = torch.trace(r @ q), torch.trace(r @ r @ q)
    size = min((-first / second).item(), 1 / 8) if second < 0 else 1 / 8
    return q + size * r @ q + size**2 / 2 * r @ r @ q


def aro(p: Tensor, g: Tensor, state: State, by_signs: bool = False) -> Tensor:
    """Take a step of ARO."""

    def base(x: Tensor) -> Tensor:
        if by_signs:
            return x.sign()
        return x * (x.size(1) ** 0.5 / x.norm(dim=1, keepdim=True).clamp(min=1e-8))

    m = state["m"] = torch.lerp(state.get("m", 0 * g), g, 0.05)
    turned = state["r"].T @ m if "r" in state else m
    state["r"] = torch.linalg.qr(m @ base(turned).T)[0]
    u = state["r"] @ base(state["r"].T @ m)
    return p * (1 - 0.01 * 0.1) - 0.01 * 0.2 * max(p.shape) ** 0.5 * u


def pion(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Pion, whose exponentials are sums to the second order."""
    factors = []
    for side, x in enumerate((p.T @ g, g @ p.T)):
        skew = x - x.T
        m, v = state.get(side, (0 * skew, 0 * skew))
        state[side] = m, v = 0.9 * m + 0.1 * skew, 0.999 * v + 0.001 * skew**2
        factors.append(-m / (v.sqrt() + 1e-8))
    size = 0.01 * 0.2 * p.numel() ** 0.5 / ((p @ factors[0] + factors[1] @ p).norm() + 1e-12)
    right, left = (
        torch.eye(len(a), dtype=p.dtype) + size * a + size**2 * a @ a / 2 for a in factors
    )
    return left @ p @ right


def conda(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Conda, with a decomposition of the momentum."""
    t = state["step"]
    m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    is_tall = p.size(-2) >= p.size(-1)
    if t % 4 == 1:
        left, _, right = torch.linalg.svd(m, full_matrices=False)
        state["basis"] = right if is_tall else left
    basis = state["basis"]
    x, y = ((a @ basis.mT if is_tall else basis.mT @ a) for a in (g, m))
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * x * x
    u = y / (state["v"].sqrt() + 1e-8)
    u = u @ basis if is_tall else basis @ u
    p = p - 0.02 * (1 - 0.99**t) ** 0.5 / (1 - 0.9**t) * 0.5 * u
    return p - 0.02 * 0.1 * p


def splus(p: Tensor, g: Tensor, state: State, largest: int = 10000) -> Tensor:
    """Take a step of SPlus."""
    t, sides = state["step"], [s for s in (0, 1) if p.ndim == 2 and p.shape[s] <= largest]
    m = state["m"] = torch.lerp(state.get("m", 0 * g), g, 0.1)
    bases = state.setdefault("bases", {s: torch.eye(p.shape[s], dtype=p.dtype) for s in sides})
    for s in sides:
        m = bases[s].T @ m if s == 0 else m @ bases[s]
    u = m.sign()
    for s in sides:
        u = bases[s] @ u if s == 0 else u @ bases[s].T
        gram = g @ g.T if s == 0 else g.T @ g
        state["gram", s] = 0.999 * state.get(("gram", s), 0) + 0.001 * gram
        if t == 1 or t % 7 == 0:
            bases[s] = torch.linalg.eigh(state["gram", s])[1]
    rate = 0.1 * (2 / sum(p.shape) if len(sides) == 2 else 1e-3)
    return (p - rate * u) * (1 - rate * 0.01)


def prism(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of PRISM: the upper part of the polar factor of a stack."""
    m = state["m"] = 0.95 * state.get("m", 0) + 0.05 * g
    left, _, right = torch.linalg.svd(
        torch.cat([0.95 * m + 0.05 * g, 0.7 * (g - m)]), full_matrices=False
    )
    u = (left @ right)[: len(p)]
    return p * (1 - 0.02 * 0.1) - 0.02 * 0.2 * max(p.shape) ** 0.5 * u


MIXED_SHAPES = ((5, 3), (3, 5), (4, 4), (6,), (2, 3, 4), (5, 3))
"""Shapes of matrices, of a vector, and of a stack of matrices."""
SQUARE_SHAPES = ((4, 4), (3, 3), (2, 3, 3), (4, 4))
"""Shapes whose first covariances have full rank, so that rounding does not choose eigenvectors."""
WIDE_SHAPES = ((3, 5), (4, 4), (2, 6), (1, 3))
CASES = (
    Case("soap", by_parameter(soap), {}, shapes=(*SQUARE_SHAPES, (6,))),
    Case(
        "soap",
        by_parameter(partial(soap, largest=3)),
        {"max_precond_dim": 3},
        label="large sides without a basis",
        shapes=((5, 3), (3, 5), (3, 3), (2, 5, 4), (6,)),
    ),
    Case("shampoo", by_parameter(shampoo), {}, shapes=MIXED_SHAPES),
    Case(
        "shampoo",
        by_parameter(partial(shampoo, every=3)),
        {"update_freq": 3},
        label="kept roots",
        shapes=MIXED_SHAPES,
    ),
    Case(
        "one_sided_shampoo",
        by_parameter(partial(one_sided_shampoo, every=1)),
        {"eps": 1e-3, "every": 1},
        shapes=MATRICES,
    ),
    Case(
        "one_sided_shampoo",
        by_parameter(partial(one_sided_shampoo, every=5)),
        {"eps": 1e-3},
        label="kept roots",
        shapes=MATRICES,
    ),
    Case("aro", by_parameter(aro), {"weight_decay": 0.1}, shapes=WIDE_SHAPES),
    Case(
        "aro",
        by_parameter(partial(aro, by_signs=True)),
        {"weight_decay": 0.1, "base_opt": "sign"},
        label="signs",
        shapes=((2, 6), (3, 16), (1, 3)),  # matrices of signs with fewer columns may be singular
    ),
    Case(
        "prism",
        by_parameter(prism),
        {"gamma": 0.7, "weight_decay": 0.1, "eps": 0.0},
        shapes=((5, 3), (3, 2), (4, 4)),  # the polar factor of other first steps is not unique
    ),
    Case("pion", by_parameter(pion), {"lr": 0.01}, shapes=MATRICES),
    Case(
        "conda",
        by_parameter(conda),
        {
            "lr": 0.02,
            "betas": (0.9, 0.99),
            "weight_decay": 0.1,
            "update_proj_gap": 4,
            "scale": 0.5,
        },
        shapes=((5, 3), (3, 5), (4, 4), (1, 2)),
    ),
    Case("splus", by_parameter(splus), {"inverse_every": 7}, shapes=((4, 4), (3, 3), (6,))),
    Case(
        "splus",
        by_parameter(partial(splus, largest=3)),
        {"inverse_every": 7, "max_dim": 3},
        label="large sides without a basis",
        shapes=((5, 3), (3, 5), (3, 3), (6,)),
    ),
    Case("kl_soap", by_parameter(kl_soap), {"lr": 1e-2}, shapes=SQUARE_SHAPES[:2]),
    # Kron balances its factors in step 101.
    Case("kron", by_parameter(kron), {"lr": 0.1}, shapes=((5, 3), (2, 4)), steps=103),
)
