"""Define an algorithm as data: its inputs, states, hyperparameters and rule."""

from __future__ import annotations

from collections import Counter as CountOf
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from optgen.contract.states import (
    AT_LEAST_FLOAT32,
    FACTS,
    MATRIX_SHAPES,
    RANK,
    StateEntry,
    size_limit,
)
from optgen.ir.nodes import NOWHERE, Call, Const, Expr, Place, Program, Ref, expressions, walk
from optgen.ir.ops import (
    DRAWING_OPS,
    LINEAR_ALGEBRA,
    MATRIX_OPS,
    PROPERTIES,
    RANDOM_OPS,
    REDUCTIONS,
    ROW_WISE_OPS,
    STORAGE_OPS,
    WIDE_OPS,
)

HyperType = Literal["number", "tuple", "flag", "choice"]
Gradient = Literal["dense", "rows", "sparse_only"]
Counter = Literal["tensor", "int"]
ScalarDevice = Literal["cpu", "param"]
Mode = Literal["train", "eval"]
ComputeDtype = Literal["at_least_float32", "param"]
AcrossGroups = Literal["any", "equal", "equal or 0"]
Default = float | int | bool | str | None | tuple[float | int | None, ...]

NARROW_DTYPES = ("bfloat16", "float16")
"""Dtypes of 16 bits that a state can declare."""


@dataclass(frozen=True)
class Bounds:
    """Range of numbers that a hyperparameter accepts. A bound of None does not limit the range.

    If `whole`, the range has only whole numbers.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    whole: bool = False

    def admits(self, value: float) -> bool:
        """Tell whether a number lies in the range. NaN lies only in the range without limits."""
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
            and (not self.whole or value % 1 == 0)
        )


@dataclass(frozen=True)
class Hyper:
    """A hyperparameter: a constructor argument and a key of the param group.

    * `fixed`: a key of the group, but no constructor argument.
    * `narrow`: a `fixed` flag that is true in groups with a parameter of 16 bits.
    * `error`: the message for a value out of bounds, with `{}` for the value. For a tuple, its
      position in the tuple is `{index}`, counted from 0, or `{number}`, counted from 1.
    * `optional`: may be None. In a tuple, a number may be None if its default is None.
    * `tensor`: whether a one-element tensor is accepted: "never", "always", "capturable" (with
      foreach only if capturable), or "number" (always, but nothing is computed in its dtype).
    * `about`: its description in the docstring of the class.
    * `rows`: if False, a sparse gradient is an error while the hyperparameter is true.
    * `groups`: the values that param groups may have: "any", "equal" ones, or "equal or 0".
    * `set_by_step`: whether each step sets this flag, which is true if the step is handed an extra
      input. Such a flag is no key of the group.
    """

    name: str
    type: HyperType
    default: Default
    bounds: Bounds = Bounds()
    optional: bool = False
    choices: tuple[str | None, ...] = ()
    error: str = ""
    fixed: bool = False
    narrow: bool = False
    tensor: str = "never"
    rows: bool = True
    about: str = ""
    groups: AcrossGroups = "any"
    set_by_step: bool = False
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def size(self) -> int:
        """The number of values: the length of a tuple, else 1."""
        return len(self.default) if isinstance(self.default, tuple) else 1

    def may_be_none(self, index: int = 0) -> bool:
        """Tell whether the value, or the number at an index of a tuple, may be None."""
        default = self.default
        return self.optional and (not isinstance(default, tuple) or default[index] is None)


@dataclass(frozen=True)
class _Symbol:
    symbol: str  # the first field of `State`


@dataclass(frozen=True)
class State(StateEntry, _Symbol):
    """A state, kept between steps: `symbol` in the rule, `key` in the checkpoint.

    `role` is "second_moment" for a mean of squared gradients, which modifiers may change; else "".
    The states of a function are lists that the caller passes.
    """

    role: str = ""
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Require:
    """A condition that the constructor checks, and the message of the error if it fails.

    The condition is about hyperparameters, or about the parameter (`ndim(p) == 2`). A condition on
    the parameter is checked for every parameter, and `{shape}` in the message is its shape.
    """

    condition: Expr
    message: str
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def is_about_param(self) -> bool:
        """Tell whether the condition is about the parameter."""
        return any(isinstance(e, Call) and e.op in PROPERTIES for e in walk(self.condition))


@dataclass(frozen=True)
class Algorithm:
    """One optimizer, or one function over lists of tensors, as its spec declares it.

    * `param`, `grad`, `step`: the rule's names for the parameter, its gradient and the number of
      steps taken (None if the rule counts no steps).
    * `counter`: the type of the step count in a checkpoint, a 0-dim tensor or an int.
    * `base`: the name of the algorithm whose rule this one uses with other defaults; None for a
      rule of its own.
    * `keywords`, `group`: the order of arguments and of group keys, if not the spec's own.
      Arguments after "*" in `keywords` are keyword-only.
    * `gradient`: "dense"; "rows", if sparse gradients work too; or "sparse_only".
    * `sparse_hint`: the end of the error about a gradient that is wrongly sparse or dense.
    * `scalar_device`: the device of the step count and of scalar states in a group that is neither
      fused nor capturable: "cpu", or "param" for the parameter's device.
    * `compute_dtype`: the dtype in which forloop and foreach compute elements: at least float32, as
      the kernels always do; or "param", the parameter's dtype, as torch's classes do.
    * `lists`: the lists that a function (`@elementwise`) takes, in the author's order; () for an
      optimizer. The first list that the rule writes has the role of the parameter (`param`), the
      first that it only reads that of the gradient (`grad`), and all others are `states`.
    * `programs`: the functions that an optimizer's `train()` and `eval()` run; () if it has no
      such methods.
    * `zero_grad`: whether a step leaves the gradients at zero.
    * `is_sweep`: whether it is a function that `outline_sweeps` made of a rule's statements.
    * `overwritten`: of a sweep, the lists that it overwrites with another value, each with the name
      of the value before.
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
    compute_dtype: ComputeDtype = AT_LEAST_FLOAT32
    lists: tuple[str, ...] = ()
    programs: tuple[ModeProgram, ...] = ()
    zero_grad: bool = False
    is_sweep: bool = False
    overwritten: tuple[tuple[str, str], ...] = ()
    source: str = field(default="", compare=False, repr=False)
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def elementwise(self) -> bool:
        """Tell whether the update of an element depends on no other element, and on no shape.

        A rule with a state of the group is not elementwise, because its parameters step together.
        Neither is one with a number on the device, which lists of one shape share.
        """
        other_states = (*self.factor_states(), *self.matrix_states(), *self.device_scalars())
        return not self._whole_tensor_ops() and not other_states

    @property
    def by_row(self) -> bool:
        """Tell whether each row of a parameter is updated without reading other rows."""
        return self._whole_tensor_ops() <= ROW_WISE_OPS and not any(self.group_states())

    def _whole_tensor_ops(self) -> frozenset[str]:
        """Return the ops in the rule that depend on more of a parameter than one element.

        `machine_eps` is left out: it depends only on the dtype, which a kernel knows anyway.
        """
        wider_ops = {*REDUCTIONS, *WIDE_OPS, *MATRIX_OPS, *LINEAR_ALGEBRA, *PROPERTIES, *RANDOM_OPS}
        return self._ops & (wider_ops - {"machine_eps"})

    @property
    def has_codes(self) -> bool:
        """Tell whether a state is kept in codes."""
        return any(state.is_quantized for state in self.states)

    @property
    def has_storage_ops(self) -> bool:
        """Tell whether the rule rounds values to the parameter's dtype."""
        return not self._ops.isdisjoint(STORAGE_OPS)

    @property
    def has_random_ops(self) -> bool:
        """Tell whether the rule draws a random number for each position in the parameter."""
        return not self._ops.isdisjoint(RANDOM_OPS)

    @property
    def is_wide(self) -> bool:
        """Tell whether the rule reduces over several parameters, or has states that they share."""
        return any(self.group_states()) or not self._ops.isdisjoint(WIDE_OPS)

    @property
    def has_rank(self) -> bool:
        """Tell whether the rule has matrices whose size is the hyperparameter `rank`."""
        in_states = any(RANK in state.shape for state in self.matrix_states())
        return in_states or "singular_vectors" in self._ops

    @property
    def has_matrix_ops(self) -> bool:
        """Tell whether the rule has ops that take whole matrices."""
        return not self._ops.isdisjoint((*MATRIX_OPS, *LINEAR_ALGEBRA))

    @cached_property
    def _ops(self) -> frozenset[str]:
        """The ops in the rule."""
        nodes = (node for expr in expressions(self.rule) for node in walk(expr))
        return frozenset(node.op for node in nodes if isinstance(node, Call))

    @property
    def with_functions(self) -> tuple[Algorithm, ...]:
        """The algorithm itself, and the functions of its programs."""
        return (self, *(program.function for program in self.programs))

    @property
    def is_function(self) -> bool:
        """Tell whether this is a function over lists, which has no class and no own state."""
        return bool(self.lists)

    @property
    def stem(self) -> str:
        """The name of the kernels: a function's own name, or the module of an optimizer."""
        return self.name if self.is_function else self.module

    @property
    def folder(self) -> str:
        """The folder of the generated files: the module's, or for a function a folder inside it."""
        return f"{self.module}/{self.name}" if self.is_function else self.module

    @property
    def title(self) -> str:
        """The name in the docstrings of generated files: `AdamW`, or `ema.to_average`."""
        return self.folder.replace("/", ".") if self.is_function else self.name

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors of the parameter's shape, in the order that every lowering uses."""
        return (self.param, self.grad, *(s.symbol for s in self.tensor_states()))

    @property
    def stored(self) -> frozenset[str]:
        """Names of the parameter and of all states."""
        return frozenset((self.param, *(s.symbol for s in self.states)))

    @property
    def stored_tensors(self) -> frozenset[str]:
        """Names of the parameter and of the states of its shape."""
        return frozenset((self.param, *(s.symbol for s in self.tensor_states())))

    def state(self, symbol: str) -> State | None:
        """Return the state with a symbol, or None."""
        return next((s for s in self.states if s.symbol == symbol), None)

    def hyper(self, name: str) -> Hyper | None:
        """Return the hyperparameter with a name, or None."""
        return next((h for h in self.hypers if h.name == name), None)

    def existence_condition(self, symbol: str) -> Expr | None:
        """Return the condition under which a state exists; None if it exists always."""
        state = self.state(symbol)
        condition = state.condition if state else None
        if condition is None:
            return None
        name, hyper = condition.name, self.hyper(condition.name)
        if condition.limit:
            holds: Expr = within(self.param, *condition.limit)
        elif hyper is None:
            holds = Call(name, (Ref(self.param),))  # a shape predicate
        else:
            holds = Ref(name) if hyper.type == "flag" else Call("truth", (Ref(name),))
        return holds if condition.holds else Call("not", (holds,))

    def checkpoint_states(self) -> Iterator[State]:
        """Yield the states that a checkpoint holds: all but the extra inputs."""
        return (s for s in self.states if not s.step_argument)

    def extra_inputs(self) -> Iterator[State]:
        """Yield the extra inputs, which each step is handed."""
        return (s for s in self.states if s.step_argument)

    def group_states(self) -> Iterator[State]:
        """Yield the states that groups keep, those of all groups too, in the author's order."""
        return (s for s in self.states if s.of_group)

    def factor_states(self) -> Iterator[State]:
        """Yield the row and column states, in checkpoint order."""
        return (s for s in self.states if s.shape in ("row", "col"))

    def matrix_states(self) -> Iterator[State]:
        """Yield the states that are square or thin matrices, in checkpoint order."""
        return (s for s in self.states if s.shape in MATRIX_SHAPES)

    def tensor_states(self) -> Iterator[State]:
        """Yield the states of the parameter's shape, in checkpoint order."""
        return (s for s in self.states if s.shape == "like")

    def scalar_states(self) -> Iterator[State]:
        """Yield the states of the scalar program, in checkpoint order."""
        return (s for s in self.states if s.shape == "scalar" and not s.on_device)

    def stream_states(self) -> tuple[State, ...]:
        """Return the scalar states that the rule reads only as the streams of random numbers.

        The Python lowerings take a list of such streams, one for each parameter of a bucket.
        """
        nodes = [node for expr in expressions(self.rule) for node in walk(expr)]
        names = CountOf(node.name for node in nodes if isinstance(node, Ref))
        streams = CountOf(map(stream_of_draw, nodes))
        return tuple(
            state
            for state in self.scalar_states()
            if not state.written and 0 < names[state.symbol] == streams[state.symbol]
        )

    def device_scalars(self) -> Iterator[State]:
        """Yield the scalar states that stay on the device, in checkpoint order."""
        return (s for s in self.states if s.on_device)

    def finish_states(self) -> Iterator[State]:
        """Yield the states that a `Finish` stores: of rows, of columns, and device scalars."""
        return (s for s in self.states if s.shape in ("row", "col") or s.on_device)

    def device_states(self) -> Iterator[State]:
        """Yield all states but those of the scalar program, in checkpoint order."""
        return (s for s in self.states if s.shape != "scalar" or s.on_device)


def stream_of_draw(expr: Expr) -> str | None:
    """Return the name that a call draws the numbers of as a stream, unchanged; None if none."""
    match expr:
        case Call(op, (*_, Call("floor", (Call("%", (Ref(name), _)),)), _, _)) if op in DRAWING_OPS:
            return name
    return None


@dataclass(frozen=True)
class ModeProgram:
    """A function over an optimizer's parameters and states that `train()` or `eval()` runs.

    The function's lists have the names that the optimizer's rule has for these tensors.
    """

    mode: Mode
    function: Algorithm


@dataclass(frozen=True, eq=False)
class IdentityKey:
    """A key that equals only a key of the same algorithm object.

    Equal algorithms may stand at different places in files, and errors name these places.
    """

    algorithm: Algorithm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.algorithm is other.algorithm

    def __hash__(self) -> int:
        return id(self.algorithm)


def within(param: str, side: str, limit: str) -> Call:
    """Return the fact that a side has at most `limit`, a hyperparameter's name or a number."""
    bound = Const(int(limit)) if limit.isdigit() else Ref(limit)
    return Call("within", (Call(side, (Ref(param),)), bound))


def fact_of(expr: Expr) -> str | None:
    """Return the name of a fact about the parameter's shape; None for any other expression."""
    match expr:
        case Call("within", (Call(side, _), Ref(limit) | Const(int() as limit))):
            return size_limit(side, limit)
        case Call(op, _) if op in FACTS:
            return op
    return None
