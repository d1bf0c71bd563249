"""Define specs of rules that reduce over several parameters or have group states."""

from __future__ import annotations

from optgen.spec import Spec

TOGETHER = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Together(
    p, g, t, /,
    m=state("m"),
    k=state("k", shape="group", init=1.0),
    r=state("row_var", shape="row", when="factored"),
    q=state("q", shape="scalar"),
    *,
    lr=hyper(0.1, ge=0),
):
    \"\"\"Reductions over groups around sweeps that only factored parameters have.\"\"\"
    k = k + 1
    first = norm(g, over="group")
    size = sum(0 * p + 1, over="all")
    if factored(p):
        g = 1.5 * g * mean(g) + row_mean(g) / size
    second = rms(g, over="group")
    m = 0.9 * m + g / k - mean(p, over="group") / (1 + first)
    u = m
    if factored(p):
        r = 0.9 * r + row_mean(u**2)
        u = u / (sqrt(r) + 1 + mean(r))
    q = 0.5 * q + max_abs(u, over="group")
    big = max_abs(u, over="all")
    p = p - lr * u / (1 + big) / t - 0.01 * sum(u * p, over="all") * g * first / second / (1 + q)
"""
ROUNDED = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Rounded(p, g, t, /, c=state("lost"), k=state("k", shape="group"), *, lr=hyper(0.1, ge=0)):
    \"\"\"Kahan summation of steps that the group scales.\"\"\"
    k = k + 1
    y = c - lr * g / (1 + norm(g, over="all")) * k
    new = rounded(p + y)
    c = y - (new - p)
    p = new
"""
FRESH = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Fresh(
    p, g, t, /,
    m=state("m", when="heavy"),
    x0=state("x0", init="p"),
    v=state("v"),
    s=state("s", shape="scalar", init=1),
    *,
    lr=hyper(0.1, ge=0),
    heavy=flag(True),
):
    \"\"\"States of every kind beside reductions over several parameters.\"\"\"
    size = rms(g - x0, over="group")
    if fresh(v):
        v = g**2
    else:
        v = 0.5 * v + 0.5 * g**2 / size
    s = 0.9 * s + 0.1 * t
    if heavy:
        m = 0.5 * m + g
        g = where(m > 0, m, g)
    p = p - lr * s * g / (sqrt(v) + 1) / (1 + sum(abs(p - x0), over="all"))
"""
NAMED = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Named(
    p, g, t, /,
    c=state("c", shape="scalar"),
    k=state("k", shape="group"),
    *,
    lr=hyper(0.1, ge=0),
):
    \"\"\"Names like those of generated variables, beside a norm of one parameter.\"\"\"
    n_of_one = 1 + norm(g)
    n = sum(abs(g) + 1, over="group")
    n_asked = 2 + n / n_of_one
    k = k + 1
    c = c + n_of_one / (1 + n_of_one)
    p = p - lr * g * n_asked / n / n_of_one - lr * c / k * mean(g) * g
"""
NORMED = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Normed(p, g, /, k=state("k", shape="group"), *, lr=hyper(0.1, ge=0)):
    \"\"\"A group's state without a reduction over parameters.\"\"\"
    k = 0.5 * k + 1
    p = p - lr * g / (1 + norm(g)) / k
"""
COUNTED = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def Counted(p, g, /, k=state("k", shape="group"), *, lr=hyper(0.1, ge=0)):
    """A group's state that depends only on its old value."""
    k = where(k > 1, 0.5, k + 1)
    p = p - lr * g / k
'''
HELD = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def Held(
    p, g, /,
    k=state("k", shape="group"),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.5, 0.25)),
    hold=flag(True),
):
    """A group's state is set to a bare number of a tuple."""
    k = betas[0] * k + sum(g**2, over="group")
    p = p - lr * g / (1 + k)
    if hold:
        k = betas[1]
'''
ACROSS = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def Across(
    p, g, /,
    m=state("m"),
    k=state("k", shape="all", init=1.0),
    d=state("d", shape="all", init="d0"),
    n=state("n", shape="group"),
    *,
    lr=hyper(0.1, ge=0, groups="equal or 0"),
    betas=hyper((0.5, 0.25), groups="equal"),
    d0=hyper(0.5, gt=0, groups="equal"),
    decay=hyper(0.1, ge=0),
    quick=flag(True, groups="equal"),
    norm_of=choice("all", "group", groups="equal"),
):
    """States of all groups beside one of a group, and a rate that groups may replace by 0."""
    n = n + 1
    largest = max_abs(lr, over="all")
    total = sum(where(lr > 0, g**2, 0), over="all")
    least = max_abs(decay, over="group")
    if quick:
        d = betas[0] * d + total / (1 + total)
    if norm_of == "all":
        k = k + 1
    else:
        k = where(total > 0, k + 2, k)
    if lr > 0:
        m = betas[1] * m + d * g
    p = p - largest * d * m / k - 0.1 * least * lr * p / n - 0.01 * d0 * g
'''
SPECS_IN_TEXTS = {
    name: Spec(name.title(), text, f"{name}.py", 1)
    for name, text in (
        ("together", TOGETHER),
        ("rounded", ROUNDED),
        ("fresh", FRESH),
        ("named", NAMED),
        ("counted", COUNTED),
        ("normed", NORMED),
        ("held", HELD),
        ("across", ACROSS),
    )
}
WHOLE_MATRICES = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Whole(
    p, g, t, /,
    m=state("m"),
    s=state("mu", shape="scalar"),
    k=state("total", shape="group"),
    *,
    lr=hyper(0.1, ge=0),
):
    \"\"\"Products of matrices beside numbers of one and of several parameters.\"\"\"
    require(ndim(p) == 2, "{shape}")
    k = 0.5 * k + norm(g, over="all")
    s = 0.5 * s + rms(g @ transpose(g))
    m = 0.9 * m + s * g / (rms(g, over="all") + where(k > 1, mean(m), 2))
    u = m @ transpose(m) @ m
    p = p - lr * u * mean(abs(m), over="group") / max_abs(u, over="group")
"""
