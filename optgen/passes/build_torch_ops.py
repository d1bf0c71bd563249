"""Build torch operations for tensor expressions. Every operation is one pass through memory.

The variables of a sweep are tracked: their axes and dtypes, and which may be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain

from optgen.ir.kinds import Axes, Stage
from optgen.ir.nodes import Call, Const, Expr, Linear, Ref, Term, children, refs
from optgen.ir.ops import STORAGE_OPS
from optgen.ir.plan import Plan, Sweep
from optgen.ir.reserved_in_python import is_free, numbered
from optgen.passes.linear_forms import ONE, is_number, lerp_terms, negate
from optgen.passes.torch_ops import Op, Operand, Operation

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
ALWAYS_NEW = (*_COMPARISONS, "where", "clone", "full_like", *STORAGE_OPS)
"""Ops that never run in place: the result has another dtype, or is meant to be a new tensor."""
_MIRRORED = dict(zip(("<", "<=", ">", ">="), (">", ">=", "<", "<="), strict=True)) | {
    word: word for word in ("==", "!=", "and", "or")
}
"""Ops that torch takes with a number only on the right, with the op for swapped operands."""


@dataclass
class TorchOpBuilder:
    """Builder of the operations of one statement. A repeated subexpression is computed once.

    `variable_of` maps each expression of the statement that is already computed to the variable
    that holds it. `shared` has the subexpressions that occur more than once. `temporaries` holds
    the names of temporary variables; some are not computed yet.
    """

    plan: Plan
    sweep: Sweep
    operations: list[Operation] = field(default_factory=list)
    variable_of: dict[Expr, str] = field(default_factory=dict)
    shared: set[Expr] = field(default_factory=set)
    temporaries: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.variables = variables_before(self.plan, self.sweep)
        self.rule_names = {r.name for r in self.plan.kinds}

    def _begin_statement(self, value: Expr) -> None:
        """Start a new statement: find the subexpressions that occur more than once in its value."""
        self.operations, self.variable_of, self.temporaries = [], {}, set()
        self.shared = repeated_subexpressions(value, self._is_tensor)

    def _materialize(self, expr: Expr, name: str) -> str:
        """Return the variable of an expression, which is computed into `name` if none holds it."""
        if isinstance(expr, Ref):
            return expr.name
        if expr in self.variable_of:
            return self.variable_of[expr]
        if isinstance(expr, Linear):
            name = self._compute_sum(expr.terms, name)
        else:
            assert isinstance(expr, Call)
            self._build_opaque_op(expr, name)
        self.variable_of[expr] = name
        return name

    def _compute_sum(self, terms: tuple[Term, ...], name: str) -> str:
        """Compute a sum into `name`, starting with a tensor term if any, else by filling a tensor.

        Return the variable that holds the sum: a single bare tensor is not copied.
        """
        first, *others = sorted(terms, key=_has_no_tensor)
        source = name if _has_no_tensor(first) else self._compute_leading_term(first, name)
        if _has_no_tensor(first):
            like = self.variables.stream_of_param_dtype()
            self._emit("full_like", name, like, (first.coefficient,))
        for term in others:
            self._accumulate(name, term, self._operands(term), source)
            source = name
        return source

    def _compute_leading_term(self, term: Term, name: str) -> str:
        """Compute a sum's first term, and return its variable; a bare tensor is not copied."""
        source = self._compute_unscaled(term, name)
        if is_number(term.coefficient, 1):
            return source
        if is_number(term.coefficient, -1):
            self._emit("neg", name, source)
        else:
            self._scale(name, term.coefficient, source)
        return name

    def _first_operand(self, expr: Expr, name: str) -> str:
        """Return an operation's first operand, built into the result's variable unless shared."""
        return self._materialize(expr, self._temporary("operand") if expr in self.shared else name)

    def _compute_unscaled(self, term: Term, name: str) -> str:
        """Compute a term without its coefficient, and return its variable."""
        if not term.factors:
            self._emit("reciprocal", name, self._materialize_divisors(term))
            return name
        source = self._first_operand(term.factors[0], name)
        for factor in term.factors[1:]:
            self._emit("mul", name, source, (self._operand(factor),))
            source = name
        if term.divisors:
            self._emit("div", name, source, (self._materialize_divisors(term),))
            source = name
        return source

    def _scale(self, name: str, coefficient: Expr, source: str | None = None) -> None:
        """Multiply a tensor by a coefficient, or divide it if the coefficient is an inverse."""
        match coefficient:
            case Const(1):
                return
            case Call("/" | "divide", (Const(1), divisor)):
                self._emit("div", name, source or name, (divisor,))
            case Call("neg", (Call("/" | "divide", (Const(1), divisor)),)):
                self._emit("div", name, source or name, (negate(divisor),))
            case _:
                self._emit("mul", name, source or name, (coefficient,))

    def _accumulate(
        self, name: str, term: Term, operands: tuple[str, ...], source: str | None = None
    ) -> None:
        """Compute `name = source + term` in a single operation; `source` defaults to `name`."""
        source = source or name
        if not operands:
            self._emit("add", name, source, (term.coefficient,))
        elif len(operands) == 1:
            self._emit("add", name, source, operands, term.coefficient)
        else:
            word = "addcdiv" if term.divisors else "addcmul"
            self._emit(word, name, source, operands, term.coefficient)

    def _operands(self, term: Term) -> tuple[str, ...]:
        """Return the tensors of a term that `add`, `addcmul` or `addcdiv` takes: at most two."""
        if term.divisors:
            divisor = self._materialize_divisors(term)
            if not term.factors:
                inverse = self._temporary("inverse")
                self._emit("reciprocal", inverse, divisor)
                return (inverse,)
            return self._product(term.factors, "update"), divisor
        if len(term.factors) <= 2:
            return tuple(self._operand(f) for f in term.factors)
        return self._product(term.factors[:-1], "update"), self._operand(term.factors[-1])

    def _materialize_divisors(self, term: Term) -> str:
        return self._product(term.divisors, "denom")

    def _product(self, factors: tuple[Expr, ...], name: str) -> str:
        if len(factors) == 1:
            return self._operand(factors[0], name)
        product = Linear((Term(ONE, factors),))
        return self.variable_of.get(product) or self._materialize(product, self._temporary(name))

    def _operand(self, factor: Expr, name: str = "") -> str:
        """Return the tensor of a factor, built into a temporary if no variable holds it."""
        if isinstance(factor, Ref):
            return factor.name
        name = name or _operand_name(factor)
        return self.variable_of.get(factor) or self._materialize(factor, self._temporary(name))

    def _build_opaque_op(self, call: Call, name: str) -> None:
        """Build an op that is not + - * /, with its first operand in the result's variable."""
        first, *others = call.args
        match call.op:
            case "maximum" | "minimum":
                tensor, other = (first, others[0]) if self._is_tensor(first) else (others[0], first)
                self._build_maximum_or_minimum(
                    call.op, name, self._first_operand(tensor, name), other
                )
            case "clamp":
                tensor = first if self._is_tensor(first) else _as_tensor(first)
                self._build_maximum_or_minimum(
                    "maximum", name, self._first_operand(tensor, name), others[0]
                )
                self._build_maximum_or_minimum("minimum", name, name, others[1])
            case "where":
                self._build_where(name, first, *others)
            case "atan2" if not all(map(self._is_tensor, call.args)):
                self._build_atan2(name, first, *others)
            case word if word in _MIRRORED and not self._is_tensor(first):
                self._build_opaque_op(Call(_MIRRORED[word], (*others, first)), name)
            case "lerp" if self.variables.may_have_another_dtype(call):
                self._materialize(lerp_terms(call, self._is_tensor), name)
            case "lerp" if not all(map(self._is_tensor, call.args[:2])):
                start, end = (e if self._is_tensor(e) else _as_tensor(e) for e in call.args[:2])
                self._build_opaque_op(Call("lerp", (start, end, call.args[2])), name)
            case word if word in _COMPARISONS and self._is_tensor(first):
                source = self._operand(first, "value")  # the result is no number
                self._emit(word, name, source, self._tensors_or_scalars(others))
            case word:
                is_tensor = self._is_tensor(first)
                operand: Operand = self._first_operand(first, name) if is_tensor else first
                self._emit(word, name, operand, self._tensors_or_scalars(others))

    def _build_atan2(self, name: str, y: Expr, x: Expr) -> None:
        """Build an `atan2` of a tensor and a number. torch takes the number only as a tensor."""
        tensor, number = (y, x) if self._is_tensor(y) else (x, y)
        source = self._first_operand(tensor, name)
        filled = self._temporary("operand")
        self._emit("new_full", filled, source, (number,))
        first, second = (source, filled) if tensor is y else (filled, source)
        self._emit("atan2", name, first, (second,))

    def _build_where(self, name: str, mask: Expr, a: Expr, b: Expr) -> None:
        """Build a `where`. If one side is a number, try to fill it into the other side's tensor.

        This works only if the result's own variable holds the tensor and may be overwritten.
        """
        condition = self._tensor_or_scalar(mask, "condition")
        if self._is_fill(mask, a, b):
            number, tensor = (b, a) if self._is_tensor(a) else (a, b)
            variable = self._materialize(tensor, name)
            if variable == name and self.variables.can_hold(name, (condition,)):
                self._fill(name, condition, number, where=number is a)
                return
        values = self._tensors_or_scalars((a, b), "value")
        if not self._is_tensor(a) and not self._is_tensor(b):
            # torch.where of two numbers has the default dtype.
            filled = self._temporary("value")
            self._emit("new_full", filled, self.variables.stream_of_param_dtype(), values[:1])
            values = (filled, *values[1:])
        self._emit("where", name, condition, values)

    def _is_fill(self, mask: Expr, a: Expr, b: Expr) -> bool:
        """Tell whether an elementwise `where` chooses between a number and a tensor."""
        return self._is_tensor(mask) and self._is_tensor(a) != self._is_tensor(b)

    def _fill(self, name: str, condition: Operand, number: Expr, where: bool) -> None:
        """Overwrite a tensor with a number where a condition is true, or where it is false."""
        word = "fill_where" if where else "fill_where_not"
        self._emit(word, name, name, (condition, number), inplace=True)

    def _build_maximum_or_minimum(self, word: str, name: str, source: str, bound: Expr) -> None:
        """Build the maximum or minimum of a tensor and a bound; a number becomes a clamp."""
        if self._is_tensor(bound):
            self._emit(word, name, source, (self._operand(bound),))
        else:
            self._emit("clamp_min" if word == "maximum" else "clamp_max", name, source, (bound,))

    def _tensors_or_scalars(self, exprs: Iterable[Expr], name: str = "") -> tuple[Operand, ...]:
        return tuple(self._tensor_or_scalar(expr, name) for expr in exprs)

    def _tensor_or_scalar(self, expr: Expr, name: str) -> Operand:
        return self._operand(expr, name) if self._is_tensor(expr) else expr

    def _is_tensor(self, expr: Expr) -> bool:
        return isinstance(expr, Linear) or self.plan.kind(expr).is_tensor

    def _temporary(self, name: str) -> str:
        """Return a name that neither the rule nor another temporary of this statement uses."""
        names = (each for each in chain([name], numbered(name)) if each not in self.temporaries)
        free = next(each for each in names if is_free(each, self.rule_names))
        self.temporaries.add(free)
        return free

    def _emit(
        self,
        function: str,
        target: str,
        source: Operand,
        args: tuple[Operand, ...] = (),
        scalar: Expr = ONE,
        inplace: bool = False,
    ) -> None:
        """Append an operation, in place if its source is a target that can hold the result."""
        variables = self.variables
        if source == target and variables.may_overwrite(target):
            inplace = function not in ALWAYS_NEW and variables.can_hold(target, args)
        self.variable_of = {e: name for e, name in self.variable_of.items() if name != target}
        variables.axes[target] = variables.broadcast_axes((source, *args))
        self.operations.append(Op(function, target, source, args, scalar, inplace))
        if target not in variables.stored:
            variables.owned.add(target)


def _has_no_tensor(term: Term) -> bool:
    return not term.factors and not term.divisors


def _operand_name(factor: Expr) -> str:
    match factor:
        case Linear((Term(Const(1), (Ref(a), Ref(b)), ()),)) if a == b:
            return f"{a}_sq"
        case Linear((Term(Const(a), (_,)), Term(Const(b), (_,)))) if {a, b} == {1, -1}:
            return "difference"
        case Call("where", _):
            return "chosen"
        case _:
            return "operand"


def _as_tensor(number: Expr) -> Expr:
    """Return a number as a tensor expression, for operations that take tensors only."""
    return Linear((Term(number),))


@dataclass
class TensorVariables:
    """Variables at one point of a sweep.

    `owned` holds the names of tensors that the generated code allocates, so it may overwrite them.
    `other_dtypes` holds the names of tensors whose dtype may differ from the parameter's. `aliases`
    maps a name to the names that may share its tensor.
    """

    plan: Plan
    sweep: Sweep
    stored: frozenset[str]  # the streams that the sweep changes
    axes: dict[str, int]  # as bits
    owned: set[str] = field(default_factory=set)
    other_dtypes: set[str] = field(default_factory=set)
    aliases: dict[str, frozenset[str]] = field(default_factory=dict)

    def copy(self) -> TensorVariables:
        """Return a copy for another arm of a branch. The arms share `axes`."""
        owned, other_dtypes = set(self.owned), set(self.other_dtypes)
        return replace(self, owned=owned, other_dtypes=other_dtypes, aliases=dict(self.aliases))

    def join(self, other: TensorVariables) -> None:
        """Join with the variables after the other arm of a branch.

        A name is owned if both arms own it. It is an alias, or may have another dtype, if that
        holds after either arm.
        """
        self.owned &= other.owned
        self.other_dtypes |= other.other_dtypes
        for name, sources in other.aliases.items():
            self.aliases[name] = sources | self.aliases.get(name, frozenset())

    def names_sharing_tensor(self, name: str) -> frozenset[str]:
        """Return every name that may share a tensor with this one, itself included."""
        return self.aliases.get(name, frozenset()) | {name}

    def num_reads(self, value: Expr, name: str) -> int:
        """Return how often a value reads a tensor, by this name or by another."""
        return sum(name in self.names_sharing_tensor(ref.name) for ref in refs(value))

    def may_overwrite(self, name: str) -> bool:
        """Tell whether an operation may change a tensor in place."""
        return name in self.stored or name in self.owned

    def can_hold(self, target: str, args: Iterable[Operand]) -> bool:
        """Tell whether a target has every axis of an operation's broadcast result."""
        target_axes = self.broadcast_axes((target,))
        return target_axes | self.broadcast_axes(args) == target_axes

    def broadcast_axes(self, operands: Iterable[Operand]) -> int:
        """Return the axes of the operands' broadcast result, as bits."""
        axes = 0
        for operand in operands:
            if isinstance(operand, str):
                axes |= self.axes.get(operand, Axes.TENSOR)
        return axes

    def may_have_another_dtype(self, expr: Expr) -> bool:
        """Tell whether operands of a value may have another dtype than the parameter.

        torch's lerp needs operands of one dtype. Results of reductions, and values computed from
        them, may be wider than the parameter. The result of a matrix op may be narrower.
        """
        tensors = (r for r in refs(expr) if self.plan.kinds[r].stage is Stage.DEVICE)
        return any(
            ref.name in self.other_dtypes or self.plan.kinds[ref].axes is not Axes.TENSOR
            for ref in tensors
        )

    def stream_of_param_dtype(self) -> str:
        """Return the name of a stream that surely has the parameter's dtype, if there is one.

        A stream that only some parameters have is the last choice: its tensor may be None.
        """
        streams = self.sweep.streams
        always_present = [s for s in streams if s.state is None or s.state.when is None]
        names = [stream.name for stream in always_present or streams]
        return next((name for name in names if name not in self.other_dtypes), names[0])


def variables_before(plan: Plan, sweep: Sweep) -> TensorVariables:
    """Return the variables before the first statement of a sweep."""
    stored = frozenset(s.name for s in sweep.streams if s.stored)
    axes = {r.name: int(kind.axes) for r, kind in plan.kinds.items()}
    other_dtypes = {call.target.name for call in plan.matrix_calls}
    other_dtypes |= {s.name for s in sweep.streams if s.state and s.state.dtype}
    return TensorVariables(plan, sweep, stored, axes, other_dtypes=other_dtypes)


def repeated_subexpressions(value: Expr, is_candidate: Callable[[Expr], bool]) -> set[Expr]:
    """Return the repeated subexpressions of a value for which `is_candidate` is true.

    Names and constants are no candidates, nor is anything inside an expression that is none.
    """
    seen: set[Expr] = set()
    repeated: set[Expr] = set()

    def visit(expr: Expr) -> None:
        if isinstance(expr, Ref | Const) or not is_candidate(expr):
            return
        if expr in seen:
            repeated.add(expr)
            return
        seen.add(expr)
        for child in children(expr):
            visit(child)

    visit(value)
    return repeated
