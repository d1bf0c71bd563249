"""Test rules on whole matrices against their authors' algorithms, written plainly: float64.

Sources: SOAP and Shampoo (of matrices) as pytorch_optimizer has them, from nikhilvyas/SOAP and
Gupta et al.; Polar Express and MuonH of KellerJordan/modded-nanogpt; zichongli5/NorMuon; KL-SOAP
of yorkerlin/KL-Methods; Chongjie-Si/AdaMuon; LIONS-EPFL/scion; KWNS4 of lixilinx/psgd_torch, with
exact spectral norms; MuonClip from arXiv 2507.20534, algorithm 1. Vectors of Shampoo, one-sided
Shampoo and the variant of KL-Shampoo are written from the formulas of the specs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from lowerings.low_rank_papers import drawn_normal
from spec_files import loaded
from torch import Tensor
from track3.follow import steady_decompositions

from optgen import use_lowering
from optgen.runtime import matrix_ops

STEPS = 30
State = dict[str, Any]
Reference = Callable[[Tensor, Tensor, State, int], Tensor]


def power(x: Tensor, exponent: float, eps: float = 0.0) -> Tensor:
    """Return a power of a symmetric positive matrix, all of whose eigenvalues grow by eps."""
    u, s, v = torch.linalg.svd(x + eps * torch.eye(len(x), dtype=x.dtype))
    return u @ (s**exponent).diag() @ v


def soap(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    if p.ndim > 2:  # a batch of matrices
        parts = state.setdefault("parts", [{} for _ in p])
        return torch.stack([soap(*each, t) for each in zip(p, g, parts, strict=True)])
    k, sides = t - 1, (0, 1) if p.ndim == 2 else ()
    grams = [g @ g.T, g.T @ g] if sides else []
    if k == 0:
        state |= {"m": 0 * g, "v": 0 * g, "grams": [0.05 * x for x in grams]}
        state["bases"] = [torch.linalg.eigh(x)[1].flip(1) for x in state["grams"]]
        return p

    def turned(x: Tensor, back: bool) -> Tensor:
        if not sides:
            return x
        left, right = (b.T if back else b for b in state["bases"])
        return left.T @ x @ right

    state["m"] = 0.95 * state["m"] + 0.05 * g
    state["v"] = 0.95 * state["v"] + 0.05 * turned(g, False) ** 2
    u = turned(turned(state["m"], False) / (state["v"].sqrt() + 1e-8), True)
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


def shampoo(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    if p.ndim > 2:
        parts = state.setdefault("parts", [{} for _ in p])
        return torch.stack([shampoo(*each, t) for each in zip(p, g, parts, strict=True)])
    if p.ndim < 2:
        state["s"] = state.get("s", 0) + g * g
        return p - 0.1 * g / (state["s"] + 1e-4).sqrt()
    u = g
    for side, x in enumerate((g, g.T)):
        start = 1e-4 * torch.eye(len(x), dtype=x.dtype)
        gram = state[side] = state.get(side, start) + x @ x.T
        root = power(gram, -1 / 4)
        u = root @ u if side == 0 else u @ root
    return p - 0.1 * u


def one_sided_shampoo(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["r"] = 0.99 * state.get("r", 0) + 0.01 * g.T @ g
    if t % 5 == 1:
        state["b"] = power(state["r"] / (1 - 0.99**t), -1 / 2, 1e-3)
    return p - 1e-3 * state["m"] / (1 - 0.9**t) @ state["b"]


POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def polar_express(x: Tensor, eps: float) -> Tensor:
    """Make a matrix orthogonal as modded-nanogpt does, but not in bfloat16."""
    y = x.mT if x.size(-2) > x.size(-1) else x
    y = y / (y.norm() * 1.02 + eps)
    for a, b, c in POLAR_EXPRESS:
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.mT if x.size(-2) > x.size(-1) else y


def polar_muon(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    update = polar_express(g.lerp(b, 0.95), 1e-6)
    return p - 0.02 * max(1, g.size(-2) / g.size(-1)) ** 0.5 * update


def normuon(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    update = quintic(g.lerp(b, 0.95))
    size = update.norm()
    mean = (update * update).mean(-1, keepdim=True)
    v = state["v"] = torch.lerp(state.get("v", 0 * mean), mean, 0.05)
    update = update / (v.sqrt() + 1e-10)
    update = update * (size / (update.norm() + 1e-10))
    return p - 0.02 * max(1, g.size(-2) / g.size(-1)) ** 0.5 * update


def kl_shampoo(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    m = state["m"] = 0.95 * state.get("m", 0) + 0.05 * g
    for side, x in enumerate((g, g.T)):
        count = x.size(1)
        if t == 1:
            values, vectors = torch.linalg.eigh(x @ x.T / count)
            state[side] = {"gram": x @ x.T / count, "basis": vectors, "values": values}
    if t > 1:
        whitened = []
        for side, x in enumerate((g, g.T)):
            other = state[1 - side]
            inverse = other["basis"] @ (1 / other["values"].clamp(1e-8)).diag() @ other["basis"].T
            whitened.append(x @ inverse @ x.T / x.size(1))
        for side, gram in enumerate(whitened):
            own = state[side]
            own["gram"] = 0.95 * own["gram"] + 0.05 * gram
            if t % 10 == 0:
                own["basis"] = torch.linalg.qr(own["gram"] @ own["basis"])[0]
            values = torch.diag(own["basis"].T @ own["gram"] @ own["basis"])
            own["values"] = 0.95 * own["values"] + 0.05 * values
    roots = [
        side["basis"] @ side["values"].clamp(1e-8).rsqrt().diag() @ side["basis"].T
        for side in (state[0], state[1])
    ]
    return p - 1e-3 * roots[0] @ m @ roots[1]


def newton_schulz(x: Tensor) -> Tensor:
    """Make a matrix orthogonal by twelve equal iterations."""
    for _ in range(12):
        gram = x.mT @ x
        x = 2 * x + x @ (0.5 * gram @ gram - 1.5 * gram)
    return x


def muon_h(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    update = g.lerp(b, 0.95)
    update = newton_schulz(update / (update.norm() + 1e-7))
    moved = p - 0.018 * p.norm() / update.norm() * update
    return moved * (p.norm() / moved.norm())


def quintic(x: Tensor, eps: float = 1e-7) -> Tensor:
    """Make each matrix orthogonal as Muon does, but not in bfloat16."""
    y = x.mT if x.size(-2) > x.size(-1) else x
    y = y / torch.linalg.matrix_norm(y, keepdim=True).clamp(min=eps)
    for _ in range(5):
        gram = y @ y.mT
        y = 3.4445 * y + (-4.7750 * gram + 2.0315 * gram @ gram) @ y
    return y.mT if x.size(-2) > x.size(-1) else y


def adamuon(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    o = quintic(g.lerp(b, 0.95).sign())
    v = state["v"] = 0.95 * state.get("v", 0) + 0.05 * o * o
    o = o / (v.sqrt() + 1e-8)
    return p * (1 - 0.02 * 0.01) - 0.02 * 0.2 * p.numel() ** 0.5 / (o.norm() + 1e-8) * o


def muon_clip(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    b = state["b"] = 0.95 * state.get("b", 0) + g
    o = quintic(b) * max(p.shape) ** 0.5 * 0.2
    p = p - 0.02 * (o + 0.1 * p)
    if (logits := logits_of(p, t)) is None:
        return p
    return torch.stack([w * min(1, 100 / s) ** 0.5 for w, s in zip(p, logits, strict=True)])


def logits_of(p: Tensor, t: int) -> list[float] | None:
    """Return the largest logit of each head, which is a row here, in some of the steps."""
    return None if t % 3 == 0 else [90.0 + 3 * t * row for row in range(len(p))]


def scion(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    b = state["b"] = 0.9 * state.get("b", 0) + 0.1 * g
    if p.ndim == 2:
        u = (p.size(0) / p.size(1)) ** 0.5 * quintic(b)
    else:
        u = b / (b.square().mean().sqrt() + 1e-8)
    return (1 - 1e-3) * p - 1e-3 * 50 * u


def scion_by_signs(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    b = state["b"] = 0.9 * state.get("b", 0) + 0.1 * g
    return p - 1e-3 * b.sign() / p.size(1)


def kron(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    m = state["m"] = torch.lerp(state.get("m", 0 * g), g, 1 - min((t - 1) / t, 0.9))
    left, right = state.get("q", [torch.eye(n, dtype=p.dtype) for n in p.shape])
    noise = drawn_normal(*p.shape, seed=0, stream=state["index"], step=t)
    x = left.T @ left @ (m + (1e-9 + 2**-24 * m.abs()) * noise) @ right.T @ right
    bounds = state.setdefault("bounds", [0.0, 0.0])
    factors = []
    for side, (q, y) in enumerate([(left, x @ x.T), (right, x.T @ x)]):
        count = p.size(1 - side)
        bound = torch.linalg.matrix_norm(y, 2).item() + count
        bounds[side] = max(0.9 * bounds[side] + 0.1 * bound, bound)
        factors.append(procrustes(q - 0.5 / bounds[side] * (y @ q - count * q)))
    left, right = factors
    u = left.T @ left @ m @ right.T @ right
    u = (u * min(2 / u.square().mean().sqrt().item(), 1)).clamp(-10, 10)
    if t > 1 and t % 100 == 1:
        share = (right.abs().max() / left.abs().max()).sqrt()
        left, right = left * share, right / share
    state["q"] = left, right
    return p * (1 - 0.1 * 0.05) - 0.1 * u


def procrustes(q: Tensor) -> Tensor:
    """Rotate a factor towards a symmetric matrix, as psgd_torch does."""
    r = q.T - q
    r = r / (torch.linalg.matrix_norm(r, 2) + 2.0**-126)
    first, second = torch.trace(r @ q), torch.trace(r @ r @ q)
    size = min((-first / second).item(), 1 / 8) if second < 0 else 1 / 8
    return q + size * r @ q + size**2 / 2 * r @ r @ q


def kl_soap(p: Tensor, g: Tensor, state: State, t: int) -> Tensor:
    grads = (g, g.T)
    if t == 1:
        state["grams"] = [0.02 * x @ x.T / x.size(1) for x in grads]
        state["bases"] = [torch.linalg.eigh(x)[1].flip(1) for x in state["grams"]]
        state["values"] = [torch.full((len(x),), 0.1, dtype=x.dtype) for x in grads]
        state["m"] = state["v"] = 0 * g
        return p
    left, right = state["bases"]
    seen = left.T @ g @ right
    state["m"] = 0.9 * state["m"] + 0.1 * seen
    state["v"] = 0.98 * state["v"] + 0.02 * seen**2
    p = (p - 1e-2 * left @ (state["m"] / (state["v"].sqrt() + 1e-8)) @ right.T) * (1 - 1e-2 * 0.01)
    values = []
    for side, x in enumerate(grads):
        other = state["bases"][1 - side] / state["values"][1 - side].sqrt()
        white = x @ other
        state["grams"][side] = 0.98 * state["grams"][side] + 0.02 * white @ white.T / x.size(1)
        new = ((state["bases"][side].T @ white) ** 2).mean(1)
        least = max(10, min(len(x), 4000)) ** -2
        values.append((0.98 * state["values"][side] + 0.02 * new).clamp(min=least))
    state["values"] = values
    if (t - 1) % 10 == 0:
        pairs = zip(state["grams"], state["bases"], strict=True)
        state["bases"] = [torch.linalg.qr(gram @ basis)[0] for gram, basis in pairs]
        turned = [new.T @ old for new, old in zip(state["bases"], (left, right), strict=True)]
        state["m"] = turned[0] @ state["m"] @ turned[1].T
    return p


ANY = ((5, 3), (3, 5), (4, 4), (6,), (2, 3, 4), (5, 3))
MATRICES = ((5, 3), (3, 5), (4, 4), (5, 3), (1, 2))
SQUARE = ((4, 4), (3, 3), (2, 3, 3), (4, 4))
"""Shapes whose first covariances have full rank; else rounding chooses some eigenvectors."""
CASES: dict[str, tuple[Reference, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "soap": (soap, (*SQUARE, (6,)), {}),
    "shampoo": (shampoo, ANY, {}),
    "one_sided_shampoo": (one_sided_shampoo, MATRICES, {"eps": 1e-3}),
    "polar_muon": (polar_muon, MATRICES, {}),
    "normuon": (normuon, MATRICES, {}),
    "kl_shampoo": (kl_shampoo, SQUARE[:2], {}),
    "kl_soap": (kl_soap, SQUARE[:2], {"lr": 1e-2}),
    "muon_h": (muon_h, MATRICES, {}),
    "adamuon": (adamuon, MATRICES, {}),
    "muon_clip": (muon_clip, MATRICES, {"lr": 0.02}),
    "scion": (scion, (*MATRICES, (6,)), {"scale": 50.0, "momentum": 0.1}),
    "scion, signs": (
        scion_by_signs,
        MATRICES,
        {"norm": "Sign", "unconstrained": True, "momentum": 0.1},
    ),
    "kron": (kron, ((5, 3), (2, 4)), {"lr": 0.1}),
}


def exact(tensors: list[Tensor], coefficients: Any, steps: int, eps: float) -> list[Tensor]:
    """Make matrices orthogonal in the dtype that they have."""
    if (len(coefficients), steps, eps) == (3, 12, 1):
        return [newton_schulz(x / x.norm().clamp(min=1)) for x in tensors]
    if (len(coefficients), steps) == (3, 5):
        return [quintic(x, eps) for x in tensors]
    assert (len(coefficients), steps) == (15, 5)
    return [polar_express(x, 0) for x in tensors]


WAYS = [(name, lowering) for name in CASES for lowering in ("forloop", "foreach")]
FUSED = [(name, "fused_cpu") for name in ("normuon", "muon_h", "soap", "adamuon", "muon_clip")]
SHARED = {*dict(FUSED), "scion"}
"""Rules whose Newton-Schulz iterations are replaced: those of optgen compute in bfloat16."""


@pytest.mark.parametrize(("name", "lowering"), [*WAYS, *FUSED])
def test_thirty_steps(name: str, lowering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(name, CASES[name][1], lowering, monkeypatch)


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_bases_of_tall_and_wide_matrices(lowering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with steady_decompositions():
        follow("kl_soap", MATRICES, lowering, monkeypatch)


def follow(
    name: str,
    shapes: tuple[tuple[int, ...], ...],
    lowering: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> float:
    """Take thirty steps of a spec and of its reference, and compare the parameters.

    Return the largest difference of an element.
    """
    reference, _, hypers = CASES[name]
    generator = torch.Generator().manual_seed(13)

    def drawn(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    params = [drawn(shape).requires_grad_() for shape in shapes]
    right = [param.detach().clone() for param in params]
    states: list[State] = [{"index": index} for index in range(len(params))]
    optimizer = loaded(name.partition(",")[0])(params, **hypers)
    if name in SHARED:
        owner = matrix_ops
        if lowering != "fused_cpu" and name != "scion":
            owner = import_module(f"{type(optimizer).lowerings}.{lowering}")
        if hasattr(owner, "orthogonalize"):  # SOAP has none
            monkeypatch.setattr(owner, "orthogonalize", exact)
    for step in range(1, (103 if name == "kron" else STEPS) + 1):  # it balances in step 101
        inputs: dict[str, Any] = {}
        if name == "muon_clip" and (logits := [logits_of(p, step) for p in params])[0]:
            given = [torch.tensor(each, dtype=torch.float64)[:, None] for each in logits]
            inputs["max_logits"] = [x.expand_as(p) for x, p in zip(given, params, strict=True)]
        for index, param in enumerate(params):
            param.grad = drawn(shapes[index])
            right[index] = reference(right[index], param.grad, states[index], step)
        with use_lowering(lowering):
            optimizer.step(**inputs)
    for param, wanted in zip(params, right, strict=True):
        assert (param.detach() - wanted).abs().max() <= 1e-10 * wanted.abs().max()
    return max((p - r).abs().max().item() for p, r in zip(params, right, strict=True))
