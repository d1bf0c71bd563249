"""Count the bytes of an optimizer's states, as numbers or as formulas in rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from optgen.contract.quantization import CODE_MAPS
from optgen.contract.states import AT_LEAST_FLOAT32, parts_of_limit
from optgen.ir.algorithm import Algorithm, State

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_SCALE = 4  # bytes of the scale of a block
_AXES = ("rows", "cols", "rank")
_LETTERS = {"rows": "m", "cols": "n", "rank": "r"}
Monomial = tuple[int, int, int]
"""The powers of rows, columns and rank."""


@dataclass(frozen=True)
class Shape:
    """A shape of parameters for which facts and formulas are the same: matrices, or vectors."""

    matrix: bool
    tall: bool = False

    def holds(self, fact: str) -> bool:
        """Tell whether a fact is true of this shape. Sides of matrices are within all limits."""
        if parts_of_limit(fact):
            return self.matrix
        return {"factored": self.matrix, "tall": self.tall}[fact]


TALL, WIDE, VECTOR = Shape(matrix=True, tall=True), Shape(matrix=True), Shape(matrix=False)


@dataclass(frozen=True)
class Size:
    """A number of bytes as a sum of monomials. A vector of n elements is one row."""

    terms: Mapping[Monomial, float] = field(default_factory=dict)

    def __add__(self, other: Size) -> Size:
        powers = {*self.terms, *other.terms}
        return Size({p: self.terms.get(p, 0) + other.terms.get(p, 0) for p in powers})

    def at(self, rows: int, cols: int, rank: int = 0) -> float:
        """Return the number of bytes for a parameter."""
        sizes = (rows, cols, min(rank, rows, cols))
        bytes_ = 0.0
        for powers, each in self.terms.items():
            bytes_ += each * prod(size**power for size, power in zip(sizes, powers, strict=True))
        return bytes_

    @property
    def bytes_per_element(self) -> float | None:
        """The bytes for each element of the parameter; None if other terms grow with the shape."""
        others = {powers for powers in self.terms if powers not in ((1, 1, 0), (0, 0, 0))}
        return None if others else self.terms.get((1, 1, 0), 0)

    def formula(self, vector: bool = False) -> str:
        """Return the formula in LaTeX."""
        terms = sorted(self.terms.items(), key=lambda term: (-sum(term[0]), _rank_last(term[0])))
        return " + ".join(_term(powers, each, vector) for powers, each in terms) or "0"


def _rank_last(powers: Monomial) -> tuple[int, ...]:
    return (powers[2], *(-power for power in powers))


def _term(powers: Monomial, bytes_: float, vector: bool) -> str:
    letters = [
        _LETTERS[axis] + (f"^{power}" if power > 1 else "")
        for axis, power in zip(_AXES, powers, strict=True)
        if power and not (vector and axis == "rows")
    ]
    return rf"{bytes_text(bytes_)}\,{''.join(letters)}" if letters else bytes_text(bytes_)


def bytes_text(value: float) -> str:
    """Return a number of bytes as text, with two decimals if it is not whole."""
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"


def element_bytes_text(value: float) -> str:
    """Return the bytes for one element as text, with at least two significant digits."""
    return f"{value:.2f}".removesuffix(".00") if value >= 1 or not value else f"{value:.2g}"


def size_of(state: State, dtype: str) -> Size:
    """Return the bytes of a state beside a parameter of a dtype, for each matrix or vector."""
    return Size({_elements(state): _bytes_per_number(state, dtype)})


def _elements(state: State) -> Monomial:
    match state.shape:
        case "like":
            return (1, 1, 0)
        case "row":
            return (1, 0, 0)
        case "col":
            return (0, 1, 0)
        case "scalar":
            return (0, 0, 0)
        case str():
            raise ValueError(f"{state.key}: the shape {state.shape!r} has no formula")
        case axes:
            return (axes.count("rows"), axes.count("cols"), axes.count("rank"))


def _bytes_per_number(state: State, dtype: str) -> float:
    if state.is_quantized:
        return CODE_MAPS[state.map].bits / 8 + _SCALE / state.block
    if state.dtype == AT_LEAST_FLOAT32:
        return max(_BYTES["float32"], _BYTES[dtype])
    if state.dtype is not None:
        return _BYTES[state.dtype]
    return _BYTES["float32" if state.shape == "scalar" else dtype]


def states_for_shape(
    algorithm: Algorithm, shape: Shape, options: Mapping[str, object]
) -> Iterator[State]:
    """Yield the states that a parameter of a shape has, without the step count.

    Args:
        algorithm: the optimizer.
        shape: the parameter's shape.
        options: values of hyperparameters; other hyperparameters have their defaults.
    """
    values = {hyper.name: hyper.default for hyper in algorithm.hypers} | dict(options)
    for state in algorithm.checkpoint_states():
        if state.of_group:
            continue
        condition = state.when or ""
        name = condition.removeprefix("not ")
        if not name:
            yield state
            continue
        value = values[name] if name in values else shape.holds(name)
        negated = condition.startswith("not ")
        if _is_true(value) != negated:
            yield state


def _is_true(value: object) -> bool:
    """Tell whether a value counts as true in a spec: neither None, 0 nor False."""
    return value is not None and value != 0


def total_size(
    algorithm: Algorithm, shape: Shape, dtype: str, options: Mapping[str, object] | None = None
) -> Size:
    """Return the bytes of all states of a parameter, with the step count if that is a tensor."""
    has_step_tensor = algorithm.step is not None and algorithm.counter == "tensor"
    steps = Size({(0, 0, 0): _BYTES["float32"]}) if has_step_tensor else Size()
    is_narrow = _BYTES[dtype] == 2
    values = {h.name: is_narrow for h in algorithm.hypers if h.narrow} | dict(options or {})
    sizes = (size_of(state, dtype) for state in states_for_shape(algorithm, shape, values))
    return sum(sizes, start=steps)
