"""Draw random specs with reductions, row values, column values and matrix ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from strategies import FOOTER, HEADER, Writer, mark_unread_locals

MATRIX_HEADER = HEADER.replace(
    "    s=state(",
    '    r=state("rows", shape="row"),\n    q=state("cols", shape="col", init=0.5),\n    s=state(',
).replace(
    "    beta1, beta2 = betas\n", '    require(factored(p), "{shape}")\n    beta1, beta2 = betas\n'
)
MATRIX_FOOTER = """    r = r * beta1 + 0.125 * row_mean(g)
    q = lerp(q, col_mean(m * g), 0.25)
    p = p * (1 + 0.125 * r * q)
"""


@dataclass
class MatrixWriter(Writer):
    """Writes a rule for matrices. `reduced_numbers` names numbers that depend on reductions."""

    reduced_numbers: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=lambda: ["r"])
    columns: list[str] = field(default_factory=lambda: ["q"])

    def reduced_number(self, depth: int = 1) -> str:
        if self.reduced_numbers and self.pick("leaf", "more") == "leaf":
            return self.pick(*self.reduced_numbers)
        x = super().tensor(1) if depth else self.pick(*self.tensors)
        return self.pick(
            f"mean({x})",
            f"rms({x})",
            f"max_abs({x})",
            f"norm({x}) / sqrt(numel(p))",
            f"sum({x}) / numel(p)",
            f"mean({self.pick(*self.rows)})",
            f"rms({self.pick(*self.columns)})",
            f"mean(row_max_abs({x}))",
            f"maximum({self.scalar(0)}, mean({x}))",
            f"{self.scalar(0)} / (1 + rms({x}))",
        )

    def row(self) -> str:
        x = super().tensor(1)
        return self.pick(
            *self.rows,
            f"row_mean({x})",
            f"row_sum({x}) / cols(p)",
            f"row_max_abs({x})",
            f"(row_mean({x}) + {self.pick(*self.rows)})",
            f"{self.pick(*self.rows)} * {self.reduced_number(0)}",
            f"{self.pick(*self.rows)} / (1 + rows(p) * col_mean({self.pick(*self.rows)})**2)",
        )

    def column(self) -> str:
        x = super().tensor(1)
        return self.pick(
            *self.columns,
            f"col_mean({x})",
            f"col_sum({x}) / rows(p)",
            f"col_max_abs({x})",
            f"{self.pick(*self.columns)} / (1 + row_max_abs({self.pick(*self.columns)}))",
            f"maximum(col_mean({x}), {self.pick(*self.columns)})",
            f"{self.scalar(0)} * {self.pick(*self.columns)}",
            f"{self.pick(*self.columns)} - row_mean({self.pick(*self.columns)})",
        )

    def tensor(self, depth: int = 3) -> str:
        if depth == 0 or self.pick("more", "more", "mixed") == "more":
            return super().tensor(depth)
        a = super().tensor(depth - 1)
        return self.pick(
            f"({a}) * {self.reduced_number()}",
            f"({a}) / (1 + abs({self.reduced_number()}))",
            f"({a} - {self.reduced_number()})",
            f"({a}) * ({self.row()})",
            f'({a}) / (1 + {self.pick("norm", "rms", "max_abs")}({self.row()}, over="matrix"))',
            f'({a}) * {self.pick("mean", "rms", "max_abs")}({self.column()}, over="matrix")',
            f"({a} - {self.column()})",
            f"({a}) / sqrt(1 + ({self.row()})**2)",
            f"({a}) / (1 + abs({self.row()} * ({self.column()})))",
            f"where({self.reduced_number()} > 0.1, {a}, g)",
            f"where(abs(g) < {self.reduced_number()}, {a}, {self.pick(*self.tensors)})",
            f"lerp({a}, g, 1 / (1 + abs({self.reduced_number()})))",
        )

    def statement(self, indent: str, depth: int = 2) -> list[str]:
        kind = self.pick("number", "row", "column", "other", "other", "other")
        if kind == "number":
            source = self.pick("reduction", "reduction", "scalar")
            number = self.reduced_number() if source == "reduction" else self.scalar(0)
            return [indent + self.assign(self.pick("d", "e"), number, self.reduced_numbers)]
        if kind == "row":
            return [indent + self.assign(self.pick("r", "h"), self.row(), self.rows)]
        if kind == "column":
            return [indent + self.assign(self.pick("q", "k"), self.column(), self.columns)]
        return super().statement(indent, depth)

    def block(self, indent: str, depth: int) -> list[str]:
        """Return the statements of one arm of an `if`.

        The other arm and later statements read no reduced number, row or column that first appears
        in this arm.
        """
        names = (self.reduced_numbers, self.rows, self.columns)
        before = [list(known) for known in names]
        lines = super().block(indent, depth)
        for known, old in zip(names, before, strict=True):
            known[:] = old
        return lines


@st.composite
def matrix_op_specs(draw: Callable[..., object]) -> str:
    """Return a spec file with a matrix op between two groups of statements.

    The second group does not read the locals of the first group.
    """
    before, after = MatrixWriter(draw), MatrixWriter(draw)
    lines = before.statement("    ")
    options = before.pick(
        "0.01",
        "0.01",
        '0.01, divisor="spectral"',
        '0.01, dtype="float32"',
        '0, divisor="spectral", dtype="parameter"',
    )
    lines.append(f"    o = orthogonalize({before.tensor(2)}, poly, 2, {options})")
    after.tensors.append("o")
    lines += [line for _ in range(2) for line in after.statement("    ")]
    return with_matrix_op("\n".join(mark_unread_locals(lines)))


def with_matrix_op(lines: str) -> str:
    """Return a spec file with these statements, which assign a matrix op's result to `o`."""
    header = MATRIX_HEADER.replace(
        "    eps=hyper", "    poly=hyper((1.5, -0.5, 0.0)),\n    eps=hyper"
    )
    footer = FOOTER.replace("lr * m * s", "lr * (m + o) * s")
    return header + lines + "\n" + footer + MATRIX_FOOTER


@st.composite
def matrix_specs(draw: Callable[..., object]) -> str:
    """Return a spec file with a random rule for matrices."""
    writer = MatrixWriter(draw)
    count = int(writer.pick("1", "2", "3", "4", "5"))
    lines = [line for _ in range(count) for line in writer.statement("    ")]
    return MATRIX_HEADER + "\n".join(mark_unread_locals(lines)) + "\n" + FOOTER + MATRIX_FOOTER
