"""Write warnings for users of a rule on matrices: memory, shapes, and arbitrary eigenvectors."""

from __future__ import annotations

import math

from optgen.contract.states import parts_of_limit
from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.nodes import Call, expressions, walk
from website.adoption import accepts_shape
from website.entries import Entry
from website.state_bytes import TALL, bytes_text, total_size

_SECOND_OPTIMIZER = "../choose.md#if-the-model-has-several-kinds-of-parameters"
_VOCABULARY = 50_257
_CONVOLUTION = (4, 3, 3, 3)


def cautions(entry: Entry) -> list[str]:
    """Return a paragraph for each thing that surprises users of such a rule."""
    paragraphs = (_memory_warning(entry), _batch_note(entry), _basis_warning(entry.algorithm))
    return [each for each in paragraphs if each]


def _memory_warning(entry: Entry) -> str:
    """Return the bytes of square states, and those of a large matrix; "" if none is square."""
    terms = total_size(entry.algorithm, TALL, "float32").terms
    row_bytes, col_bytes = terms.get((2, 0, 0), 0), terms.get((0, 2, 0), 0)
    if not (row_bytes or col_bytes):
        return ""
    squares = [
        rf"\({bytes_text(each)}\,{letter}^2\)"
        for letter, each in (("m", row_bytes), ("n", col_bytes))
        if each
    ]
    return (
        '!!! warning "Memory grows with the square"\n\n'
        f"    The square states of a matrix with \\(m\\) rows and \\(n\\) columns take "
        f"{' + '.join(squares)} bytes in float32: {_largest(entry, row_bytes, col_bytes)}"
    )


def _largest(entry: Entry, row_bytes: float, col_bytes: float) -> str:
    """Return the bytes of the square state of a large side, and what to do about it."""
    bytes_ = row_bytes or col_bytes
    if limit := _limit(entry.algorithm):
        assert isinstance(limit.default, int)
        return (
            f"{bytes_ * limit.default**2 / 1e9:.1f} GB for a side of {limit.default:,}. A side "
            f"above `{limit.name}`, {limit.default:,} by default, has none."
        )
    size = f"{bytes_ * _VOCABULARY**2 / 1e9:.0f} GB"
    if not row_bytes:
        return (
            f"{size} for a matrix of {_VOCABULARY:,} columns. Give matrices with so many columns "
            f"to a [second optimizer]({_SECOND_OPTIMIZER})."
        )
    return (
        f"{size} for an embedding of {_VOCABULARY:,} rows. Give embeddings and the last layer to a "
        f"[second optimizer]({_SECOND_OPTIMIZER}), as "
        f'`create_optimizer(model, "{entry.name}", others="adamw")` does.'
    )


def _limit(algorithm: Algorithm) -> Hyper | None:
    """Return the hyperparameter that limits the sides with square states; None without one."""
    for state in algorithm.states:
        if parts := parts_of_limit(state.when or ""):
            return algorithm.hyper(parts[1])
    return None


def _batch_note(entry: Entry) -> str:
    """Return how a convolution's weight is stepped; "" if the rule sees no matrices in it."""
    if not _sees_matrices(entry.algorithm) or not accepts_shape(entry, _CONVOLUTION):
        return ""
    *batch, rows, cols = _CONVOLUTION
    return (
        "A parameter with more than two axes is a batch of matrices, which the last two axes "
        f"make: a convolution's weight of shape {_CONVOLUTION} is {math.prod(batch)} matrices of "
        f"{rows} × {cols}. With the [view](../views.md) `({_CONVOLUTION[0]}, -1)` it is one "
        f"matrix of {_CONVOLUTION[0]} × {math.prod(_CONVOLUTION[1:])}."
    )


def _sees_matrices(algorithm: Algorithm) -> bool:
    """Tell whether the rule has matrix ops, or states of rows, columns or matrices."""
    by_axes = (s.shape in ("row", "col") or not isinstance(s.shape, str) for s in algorithm.states)
    return algorithm.has_matrix_ops or any(by_axes)


def _basis_warning(algorithm: Algorithm) -> str:
    """Return a warning about eigenvectors of equal eigenvalues; "" if the rule computes none."""
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    if not any(isinstance(node, Call) and node.op == "eigenvectors" for node in nodes):
        return ""
    return (
        "Eigenvectors of the eigenvalue 0 are arbitrary. If gradients lack full rank, two machines "
        "may find different bases, and their runs may diverge."
    )
