"""An algorithm: what training hands over, what is remembered, what the user chooses, the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from optgen.ir.nodes import NOWHERE, Call, Expr, Place, Program, expressions, walk
from optgen.ir.ops import BY_ROW, MATRIX_OPS, PROPERTIES, REDUCTIONS

HyperType = Literal["number", "tuple", "flag", "choice"]
Shape = Literal["like", "row", "col", "scalar"]
Gradient = Literal["dense", "rows", "sparse_only"]
Counter = Literal["tensor", "int"]
ScalarDevice = Literal["cpu", "param"]
Default = float | int | bool | str | None | tuple[float | int | None, ...]


@dataclass(frozen=True)
class Bounds:
    """The numbers a hyperparameter accepts; None on a side means no limit there."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def admits(self, value: float) -> bool:
        """Whether a number lies inside (NaN never does)."""
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )


@dataclass(frozen=True)
class Hyper:
    """A hyperparameter: a constructor argument and a key of the param group.

    `fixed` ones are keys of the group but no arguments. `error` is the message for a value out of
    bounds, with `{}` for the value (and `{index}` or `{number}`, from 0 or from 1, in a tuple). Of
    an `optional` tuple, those numbers may be None that are so by default. `tensor` says whether a
    one-element tensor is accepted: "never", "always", "capturable" (not with foreach unless
    capturable), or "number" (always, and nothing is computed in its dtype). `about` is what the
    class's docstring says of it. Where one without `rows` is true, there may be no sparse gradient.
    """

    name: str
    type: HyperType
    default: Default
    bounds: Bounds = Bounds()
    optional: bool = False
    choices: tuple[str | None, ...] = ()
    error: str = ""
    fixed: bool = False
    tensor: str = "never"
    rows: bool = True
    about: str = ""
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return len(self.default) if isinstance(self.default, tuple) else 1

    def may_be_none(self, index: int = 0) -> bool:
        """Whether it, or its number at an index of a tuple, may be None."""
        default = self.default
        return self.optional and (not isinstance(default, tuple) or default[index] is None)


@dataclass(frozen=True)
class State:
    """Something remembered: `symbol` in the rule, `key` in the checkpoint.

    `shape` is "like" the parameter; "row", the same with one element along the last axis; "col",
    with one along the axis before it; or "scalar", one number per parameter. `when` brings it into
    being: the truth of a hyperparameter ("amsgrad", "not amsgrad"), or of a fact of the parameter
    ("factored": it has rows and columns).
    `dtype` is None where the parameter decides it; of a "scalar", where torch does (float32, or
    float64 where that is the default dtype).
    Without `rows` it changes as a whole: with it, a sparse gradient is taken as a dense one.
    One that is not `written` is only read: it keeps what it began with. Of a function it is a list
    that is handed over.
    """

    symbol: str
    key: str
    init: float | str = 0.0
    shape: Shape = "like"
    dtype: str | None = None
    when: str | None = None
    eager: bool = False
    rows: bool = True
    written: bool = True
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Require:
    """A condition that the constructor checks, and what it says if it fails.

    It is about hyperparameters, or about the parameter (`ndim(p) == 2`); then it holds for every
    parameter that an optimizer is given, and `{shape}` in the message is that one's.
    """

    condition: Expr
    message: str
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def of_param(self) -> bool:
        """Whether it is about the parameter."""
        return any(isinstance(e, Call) and e.op in PROPERTIES for e in walk(self.condition))


@dataclass(frozen=True)
class Algorithm:
    """One optimizer, or one function over lists of tensors, as its spec says it.

    `param`, `grad` and `step` are the letters the rule uses for the parameter, its gradient and the
    number of steps taken (None: the rule keeps no step); `counter` says whether a checkpoint has it
    as a 0-dim tensor or as an int. `keywords` and `group` are given where the order of arguments or
    of group keys is not the spec's own; `*` in `keywords` starts what is keyword-only.
    `scalar_device` is where the count and scalar states live in a group that is neither fused nor
    capturable: on the CPU, or with the parameter.

    `lists` are what a function (`@elementwise`) is handed, in the author's order; an optimizer has
    none. One tensor of each is updated as a parameter is: `param` is the first list that the rule
    writes, `grad` the first that it only reads, and all others are `states` that are handed over.
    """

    name: str
    module: str
    doc: str
    paper: str
    states: tuple[State, ...]
    hypers: tuple[Hyper, ...]
    rule: Program
    param: str = "p"
    grad: str = "g"
    step: str | None = "t"
    counter: Counter = "tensor"
    requires: tuple[Require, ...] = ()
    base: str | None = None
    keywords: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    gradient: Gradient = "dense"
    sparse_hint: str = ""
    scalar_device: ScalarDevice = "cpu"
    lists: tuple[str, ...] = ()
    source: str = field(default="", compare=False, repr=False)
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def elementwise(self) -> bool:
        """Whether one element of a parameter is updated without regard to the others."""
        return not self._whole_words() and not any(self.factor_states())

    @property
    def by_row(self) -> bool:
        """Whether one row of a parameter is updated without regard to the others."""
        return self._whole_words() <= BY_ROW

    def _whole_words(self) -> set[str]:
        """The words in the rule that look at more of a parameter than one element."""
        whole = {*REDUCTIONS, *MATRIX_OPS, *PROPERTIES}
        nodes = (node for expr in expressions(self.rule) for node in walk(expr))
        return {node.op for node in nodes if isinstance(node, Call) and node.op in whole}

    @property
    def is_function(self) -> bool:
        """Whether it is a function over lists, with neither a class nor a state of its own."""
        return bool(self.lists)

    @property
    def stem(self) -> str:
        """What its kernels are called after: a spec file may hold several functions."""
        return self.name if self.is_function else self.module

    @property
    def folder(self) -> str:
        """Where its generated files stand: a function's in a folder within that of its file."""
        return f"{self.module}/{self.name}" if self.is_function else self.module

    @property
    def tensors(self) -> tuple[str, ...]:
        """What has the parameter's shape, in the order in which every lowering takes it."""
        return (self.param, self.grad, *(s.symbol for s in self.tensor_states()))

    def state(self, symbol: str) -> State | None:
        """The state written `symbol` in the rule, if there is one."""
        return next((s for s in self.states if s.symbol == symbol), None)

    def hyper(self, name: str) -> Hyper | None:
        """The hyperparameter of that name, if there is one."""
        return next((h for h in self.hypers if h.name == name), None)

    def factor_states(self) -> Iterator[State]:
        """States that hold one number per row, or one per column, in checkpoint order."""
        return (s for s in self.states if s.shape in ("row", "col"))

    def tensor_states(self) -> Iterator[State]:
        """States with the parameter's shape, in checkpoint order."""
        return (s for s in self.states if s.shape == "like")

    def scalar_states(self) -> Iterator[State]:
        """States that are one number per parameter, in checkpoint order."""
        return (s for s in self.states if s.shape == "scalar")
