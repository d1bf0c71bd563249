"""Define rules on whole matrices that have sweeps between matrix words."""

from __future__ import annotations

from lowerings.test_whole_matrices import MATRIX, NS, RULES, SQUARES, spec_of_case
from spec_texts import LR, spec

from optgen.spec import Spec

BETAS = f"{LR}, beta=hyper(0.9, ge=0, lt=1), eps=hyper(1e-3), nesterov=flag(True)"
MOMENTS = 'm=state("exp_avg"), v=state("exp_avg_sq")'

RULES_WITH_SWEEPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # name: states, hyperparameters, body
    "adam between products": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "m = beta * m + (1 - beta) * g",
            "v = beta * v + (1 - beta) * (L @ g + g) ** 2",
            "L = lerp(L, g @ transpose(g), 1 - beta)",
            "R = lerp(R, transpose(g) @ g, beta)",
            "u = L @ (m / (sqrt(v) + eps)) @ R",
            "p = p - lr * u - lr * eps * p",
            "if nesterov:",
            "    p = p - lr * eps * g",
        ),
    ),
    "words in branches in branches": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "m = m + g",
            "if nesterov:",
            "    g = g + beta * m",
            "    if t % 3 == 0:",
            "        L = qr(L + g @ transpose(g))",
            "        v = beta * v + abs(L @ m)",
            "    elif t > 1:",
            "        v = v + g**2",
            "        m = m * v - L @ v",
            "    u = m + g",
            "else:",
            "    u = g - m",
            "    R = R + transpose(u) @ g",
            "p = p - lr * (u @ R + u / (v + eps))",
        ),
    ),
    "old values of what a sweep writes": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "before = p",
            "old = m",
            "m = beta * m + g",
            "x = g @ transpose(old)",
            "p = p - lr * (x @ m + old)",
            "L = L + x * x",
            "g = g * beta + before",
            "v = v + L @ g - before",
            "m = m + transpose(transpose(g) @ L)",
            "n = transpose(m)",
            "m = m - 0.5 * g",
            "R = R * eps + n @ m",
            "if nesterov:",
            "    n, m = transpose(m), transpose(n) * 0.5",
            "R = R + n @ g",
        ),
    ),
    "sums, rows, columns and numbers": (
        f"{MOMENTS}, {SQUARES}, r=state('rows', shape='row'), n=state('norm', shape='scalar')",
        BETAS,
        (
            MATRIX,
            "r = lerp(r, row_mean(g**2), beta)",
            "u = L @ (g / (eps + r) / (1 + norm(m)))",
            "u = u * maximum(norm(p) / (1 + norm(u)), eps) - col_mean(u)",
            "if nesterov:",
            "    u = u / (1 + max_abs(u))",
            "n = beta * n + rms(u)",
            "L = L + trace(g @ transpose(g)) * (2 * L) @ L / (1 + n)",
            "m = beta * m + u * row_sum(g)",
            "R = R + transpose(u) @ m",
            "v = v + 1",
            "p = p - lr * u / (1 + row_norm(u))",
        ),
    ),
    "numbers that all tensors of a list share": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "if fresh(m):",
            "    m = gaussian(m, 0, 0)",
            "m = beta * m + g",
            "L = L + m @ transpose(m)",
            "x = gaussian(m, 0, 1)",
            "x = x * x + m",
            "v = v + L @ x",
            "R = R + transpose(x) @ g",
            "p = p - lr * v * eps",
            "if nesterov:",
            "    p = p - lr * beta * g",
        ),
    ),
    "copies of what a sweep writes": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "before = p",
            "x = before @ transpose(g)",
            "p = p - lr * g",
            "L = L + x @ before @ transpose(p)",
            "p = 2 * p",
            "u = p",
            "y = x @ u",
            "p = p - lr * y",
            "m = p",
            "p = m * beta",
            "y = L @ m",
            "p = p - eps * y * u",
            "v = v + L @ u",
            "if nesterov:",
            "    R = transpose(v) @ m",
            "    m = m * before",
            "m = m + p @ R",
        ),
    ),
    "conditions of elements": (
        f"{MOMENTS}, {SQUARES}",
        BETAS,
        (
            MATRIX,
            "u = L @ g + g",
            "hit = u * g > 0",
            "m = where(hit and m < 1, m + u, beta * m)",
            "v = where(u > eps, v, where(nesterov, u, v * beta))",
            "L = where(L > 0.1, L, 0.5 * L + g @ transpose(g))",
            "R = R + 0.1",
            "p = p - lr * clamp(m, -1, 1) - lr * maximum(v, g @ R)",
        ),
    ),
    "orthogonalized under a flag": (
        'm=state("exp_avg"), v=state("exp_avg_sq", when="nesterov")',
        f"{NS}, beta=hyper(0.9), eps=hyper(1e-3), nesterov=flag(False)",
        (
            MATRIX,
            "m = lerp(m, g, 1 - beta)",
            "if nesterov:",
            "    v = lerp(v, g**2, 0.5)",
            "    p = p - lr * m / (sqrt(v) + eps)",
            "elif t % 2 == 1:",
            "    o = orthogonalize(lerp(g, m, beta), abc, 4, 1e-7)",
            "    p = p - lr * sqrt(rows(p)) * o",
            "    if eps:",
            "        p = p - lr * eps * p * o",
        ),
    ),
}


def spec_of(case: str) -> Spec:
    if case in RULES:
        text = spec_of_case(case).source
    else:
        states, hypers, body = RULES_WITH_SWEEPS[case]
        text = spec(*body, states=states, hypers=hypers)
    return Spec("Random", text, "<drawn>", 1)  # as the fuzzer names a rule


def rule_with_products(count: int) -> Spec:
    """Return a rule in which `count` chains of matrix products lie between `count + 1` sweeps."""
    body = [f"m = {n}.5 * m + g * 2 - p @ transpose(m) @ g" for n in range(count)]
    text = spec(MATRIX, *body, "p = p - lr * m @ transpose(m) @ m", states='m=state("m")')
    return Spec("Made", text, "made.py", 1)
