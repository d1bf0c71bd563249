"""Draw random specs, as an author might write them.

A spec is drawn as text, so that the reader is tested too. Values stay moderate: operands of roots
are not negative, and divisors keep away from zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

HEADER = '''from optgen.spec import *

SCALE = 0.75


def blend(x, y):
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half


@optimizer(paper="https://example.org")
def Random(
    p, g, t, /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", init="eps"),
    w=state("average", init="p", when="flag_a"),
    s=state("product", shape="scalar", init=1.5),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    eps=hyper(0.25, gt=0),
    c=hyper(0.5),
    flag_a=flag(False),
    flag_b=flag(False),
):
    """Drawn by lot."""
    beta1, beta2 = betas
'''
FOOTER = """    if flag_a:
        w = 0.5 * w + 0.25 * p
    if flag_b and c > 0:
        g = g + eps * p
    m = m * beta1 + 0.125 * g
    v = beta2 * v + 0.125 * g**2
    s = s * beta1 + 0.25
    p = p - lr * m * s / (sqrt(v) + eps)
"""
CONDITIONS = (
    "flag_a",
    "flag_b",
    "not flag_a",
    "t > 1",
    "t <= 2",
    "fresh(m)",
    "c",
    "flag_b or t > 1",
    "c > 0 and not flag_a",
    "s > 1",
)
FLAGS = st.fixed_dictionaries(
    {
        "flag_a": st.booleans(),
        "flag_b": st.booleans(),
        "c": st.sampled_from([0.0, 0.5, -0.5]),
    }
)


@dataclass
class Writer:
    """Writes a rule; `tensors` and `scalars` are the names that the next statement may read."""

    draw: Callable[..., object]
    tensors: list[str] = field(default_factory=lambda: ["p", "g", "m", "v"])
    scalars: list[str] = field(
        default_factory=lambda: ["lr", "beta1", "beta2", "eps", "c", "t", "s", "SCALE"]
    )

    def pick(self, *options: str) -> str:
        return str(self.draw(st.sampled_from(options)))

    def number(self) -> str:
        return self.pick("0.5", "2", "0.125", "1", "3")

    def scalar(self, depth: int = 2) -> str:
        leaf = self.pick(*self.scalars, self.number(), "betas[1]")
        if depth == 0 or self.pick("leaf", "more") == "leaf":
            return leaf
        a, b = self.scalar(depth - 1), self.scalar(depth - 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"{a} * {b}",
            f"{a} / (abs({b}) + 1)",
            f"-{a}",
            f"sqrt(abs({a}))",
            "(1 - beta1**t)",
            "beta2**t",
            f"maximum({a}, {b})",
        )

    def tensor(self, depth: int = 3) -> str:
        leaf = self.pick(*self.tensors)
        if depth == 0 or self.pick("leaf", "more", "more") == "leaf":
            return leaf
        a, b = self.tensor(depth - 1), self.tensor(depth - 1)
        c = self.scalar(1)
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"{c} * ({a})",
            f"({a}) * {c}",
            f"({a} + {c})",
            f"({c} - {a})",
            f"({a}) * ({b})",
            f"({a}) / ({c} * {c} + 1)",
            f"({a}) / (sqrt(({b})**2 / (eps + 1)) + eps)",
            f"({a}) / (abs({b}) / (1 - beta1**t) + eps)",
            f"-({a})",
            f"({a})**2",
            f"sqrt(abs({a}) * (1 - beta2))",
            f"sqrt(abs({a})) / sqrt({b}**2 + 1)",
            f"maximum({a}, {b})",
            f"lerp({a}, {b}, {c})",
            f"where({a} > 0.3, {a}, {b})",
            f"where(g < {c}, {b}, {a})",
            f"where({a} > 0.3, {c}, {b})",
            f"where({b} < g, {a}, 0.5)",
            f"where({a} >= {b}, {c}, 2) * {b}",
            f"where({self.pick('t > 1', 'flag_a', 'c > 0 and m > 0.3')}, {a}, {b})",
            f"clamp({a}, -1, {c} * {c})",
            f"blend({a}, {b})",
        )

    def statement(self, indent: str, depth: int = 2) -> list[str]:
        kinds = ["tensor", "tensor", "state", "state", "swap", "scalar", "scalar", "blend"]
        kind = self.pick(*kinds, *(["if"] * depth))
        if kind == "tensor":
            return [indent + self.assign(self.pick("x", "y", "z", "g"), self.tensor())]
        if kind == "state":
            return [indent + self.assign(self.pick("m", "v", "p"), self.tensor(2))]
        if kind == "swap":
            a, b = self.pick(*self.tensors), self.pick(*self.tensors)
            return [f"{indent}{a}, {b} = {self.tensor(1)}, {self.tensor(1)}"] if a != b else []
        if kind == "scalar":
            return [indent + self.assign(self.pick("a", "b", "s"), self.scalar(), self.scalars)]
        if kind == "blend":
            return [indent + self.assign("x", f"blend({self.tensor(1)}, {self.tensor(1)})")]
        return self.branch(indent, depth)

    def assign(self, name: str, value: str, names: list[str] | None = None) -> str:
        names = self.tensors if names is None else names
        if name not in names:
            names.append(name)
        return f"{name} = {value}" if value != name else f"{name} = 0.5 * {name}"

    def branch(self, indent: str, depth: int) -> list[str]:
        before = list(self.tensors), list(self.scalars)
        lines = [f"{indent}if {self.pick(*CONDITIONS)}:", *self.block(indent, depth)]
        after_then = self.tensors, self.scalars
        if self.pick("else", "none") == "else":
            self.tensors, self.scalars = list(before[0]), list(before[1])
            lines += [f"{indent}else:", *self.block(indent, depth)]
        else:
            self.tensors, self.scalars = before
        self.tensors = [n for n in self.tensors if n in after_then[0]]
        self.scalars = [n for n in self.scalars if n in after_then[1]]
        return lines

    def block(self, indent: str, depth: int) -> list[str]:
        count = int(self.pick("1", "2", "3"))
        lines = [s for _ in range(count) for s in self.statement(indent + "    ", depth - 1)]
        return lines or [indent + "    pass"]


@st.composite
def specs(draw: Callable[..., object]) -> str:
    """Return a spec file with a random rule of one to six statements."""
    writer = Writer(draw)
    count = int(writer.pick("1", "2", "3", "4", "5", "6"))
    lines = [line for _ in range(count) for line in writer.statement("    ")]
    return HEADER + "\n".join(mark_unread_locals(lines)) + "\n" + FOOTER


def mark_unread_locals(lines: list[str]) -> list[str]:
    """Return the lines with an underscore before unread names, as the language demands."""
    halves = [line.rpartition(" = ") for line in lines]
    read = {name for _, _, value in halves for name in re.findall(r"\b[xyzabdehk]\b", value)}
    unread = set("xyzabdehk") - read
    if not unread:
        return lines
    pattern = re.compile(rf"\b([{''.join(unread)}])\b")
    return [pattern.sub(r"_\1", names) + equals + value for names, equals, value in halves]
