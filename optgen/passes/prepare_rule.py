"""Prepare a rule for planning: complete it, specialize it to some shapes, expand its reductions.

A rule is specialized to one combination of shape predicates ("facts"), or to 1 x 1 matrices. Means
and norms become primitive reductions, `sum` and `max_abs` of all elements, of each row or of each
column, and arithmetic on the parameter's sizes, which runs once per parameter between two sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count, product

from optgen.contract.states import FACTS, RANK, parts_of_limit
from optgen.ir.algorithm import Algorithm, Hyper, State, fact_of
from optgen.ir.kinds import Axes, Kind, declared_kinds, effective_rank, height, kind_of, width
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Ref,
    assigns,
    expressions,
    map_expressions,
    map_statements,
    names_read,
    rebuild,
    rename_program,
    walk,
)
from optgen.ir.ops import SHADOWABLE_FUNCTIONS
from optgen.ir.reserved_in_python import is_free

Facts = Mapping[str, bool]


def derive(algorithm: Algorithm, base: Algorithm) -> Algorithm:
    """Return the complete algorithm of a spec with `base=`, which takes the base's rule and states.

    All hyperparameters are in the base's order.
    """
    hypers: list[Hyper] = []
    for of_base in base.hypers:  # what groups must share follows from the base's rule
        own = algorithm.hyper(of_base.name)
        hypers.append(replace(own, groups=of_base.groups) if own else of_base)
    return replace(
        algorithm,
        states=base.states,
        hypers=tuple(hypers),
        rule=base.rule,
        requires=(*base.requires, *algorithm.requires),
        gradient=base.gradient,
        sparse_hint=algorithm.sparse_hint or base.sparse_hint,
        group=algorithm.group or base.group,
        keywords=algorithm.keywords,
        param=base.param,
        grad=base.grad,
        step=base.step,
        counter=base.counter,
        scalar_device=base.scalar_device,
        compute_dtype=base.compute_dtype,
        zero_grad=algorithm.zero_grad or base.zero_grad,
    )


def add_maximize(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with the flag `maximize`, which negates the gradient before the rule.

    An `@elementwise` function stays as it is.
    """
    if algorithm.is_function:
        return algorithm
    grad = Ref(algorithm.grad)
    negation = Assign(grad, Call("neg", (grad,)), (f"{grad.name} = -{grad.name}",))
    flag = Hyper("maximize", "flag", False)
    branch = If(Ref("maximize"), (negation,), (), ("if maximize:",))
    return replace(algorithm, hypers=(*algorithm.hypers, flag), rule=(branch, *algorithm.rule))


def drop_unused_hypers(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with only the hyperparameters that its rule reads.

    For example, a hyperparameter may only initialize a state.
    """
    rule = expand_reductions(algorithm).rule if algorithm.has_rank else algorithm.rule
    read = names_read(rule)  # a mean over an axis of the rank's size reads the rank
    return replace(algorithm, hypers=tuple(h for h in algorithm.hypers if h.name in read))


def use_printed_names(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with p, g, t and the states renamed to param, grad, step and keys.

    A state's key is its name in checkpoints. The lists of a function keep the author's names.

    A name that a printer would confuse with another name is changed: a state gets the prefix
    `state_` (for example a state `step_size` beside a hyperparameter `step_sizes`), and a local
    gets trailing underscores. Hyperparameters keep their names, because callers use them.
    """
    keys = {s.symbol: s.key for s in algorithm.states}
    wanted = {algorithm.param: "param", algorithm.grad: "grad"}
    if algorithm.is_function:
        wanted = {name: name for name in wanted}
    if algorithm.step:
        wanted[algorithm.step] = "step"
    wanted |= keys
    wanted |= {n: n for a in assigns(algorithm.rule) if (n := a.target.name) not in wanted}
    names: dict[str, str] = {}
    used_names = {"state_steps", *(h.name for h in algorithm.hypers), *_shadowable_calls(algorithm)}
    used_names |= set() if algorithm.step else {"step"}
    for name, wanted_name in wanted.items():
        candidates = _underscored_names(wanted_name)
        if name in keys:
            candidates = chain([wanted_name], _underscored_names(f"state_{wanted_name}"))
        names[name] = next(n for n in candidates if is_free(n, used_names))
        used_names.add(names[name])
        if names[name] != wanted_name:
            used_names.add(f"fresh_{wanted_name}")  # the runtime builds this name from the key
    return replace(
        algorithm,
        param=names[algorithm.param],
        grad=names[algorithm.grad],
        step="step" if algorithm.step else None,
        states=tuple(replace(s, symbol=names[s.symbol]) for s in algorithm.states),
        rule=rename_program(
            algorithm.rule, lambda ref: replace(ref, name=names.get(ref.name, ref.name))
        ),
    )


def _shadowable_calls(algorithm: Algorithm) -> frozenset[str]:
    """Return the functions that a rule calls, and whose names other rules may give to values."""
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    return SHADOWABLE_FUNCTIONS.intersection(n.op for n in nodes if isinstance(n, Call))


def _underscored_names(name: str) -> Iterator[str]:
    return (name + "_" * length for length in count())


def facts_read(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the facts of a shape (`factored`) that the rule or its states read.

    The limits of sizes come last.
    """
    names = dict.fromkeys(s.condition.name for s in algorithm.states if s.condition)
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    names |= dict.fromkeys(filter(None, map(fact_of, nodes)))
    limits = (name for name in names if parts_of_limit(name))
    return (*(fact for fact in FACTS if fact in names), *limits)


def fact_combinations(algorithm: Algorithm) -> Iterator[Facts]:
    """Yield every possible combination of answers, True first.

    A tall parameter, or one within a limit, has rows and columns, so it is factored, too. If the
    rule reads no facts, yield one empty mapping.
    """
    facts = facts_read(algorithm)
    for answers in product((True, False), repeat=len(facts)):
        combination = dict(zip(facts, answers, strict=True))
        of_matrices = (holds for fact, holds in combination.items() if fact != "factored")
        if combination.get("factored", True) or not any(of_matrices):
            yield combination


def specialize(algorithm: Algorithm, facts: Facts) -> Algorithm:
    """Return the algorithm for parameters with these facts, without states that do not exist."""
    if not facts:
        return algorithm
    states: list[State] = []
    for state in algorithm.states:
        condition = state.condition
        if condition is None or condition.name not in facts:
            states.append(state)
        elif facts[condition.name] is condition.holds:
            states.append(replace(state, when=None))
    return replace(
        algorithm,
        states=tuple(states),
        rule=map_expressions(algorithm.rule, lambda expr: _with_answers(expr, facts)),
    )


def _with_answers(expr: Expr, facts: Facts) -> Expr:
    """Return an expression with every fact replaced by True or False."""
    fact = fact_of(expr)
    if fact is not None and fact in facts:
        return Const(facts[fact], expr.place)
    return rebuild(expr, lambda child: _with_answers(child, facts))


def specialize_unit_matrices(algorithm: Algorithm) -> Algorithm:
    """Return the rule for parameters whose matrices have one element each.

    The row and column sums of such a matrix are its element. The weight of a 1 x 1 convolution has
    up to half a million such matrices. The specialized rule is elementwise, so one loop over
    elements replaces the loops over rows and columns. Only reductions over the whole parameter
    still end a sweep.
    """
    states = tuple(
        replace(s, shape="like") if s.shape in ("row", "col") else s for s in algorithm.states
    )
    return replace(algorithm, states=states, rule=map_expressions(algorithm.rule, _specialized))


def _specialized(expr: Expr) -> Expr:
    expr = rebuild(expr, _specialized)
    match expr:
        case Call("row_mean" | "col_mean" | "row_sum" | "col_sum", (x,)):
            return x
        case Call(
            "row_norm" | "col_norm" | "row_rms" | "col_rms" | "row_max_abs" | "col_max_abs", (x,)
        ):
            return Call("abs", (x,), expr.place)
        case Call("rows" | "cols", _):
            return Const(1)
    return expr


def expand_reductions(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm, in SSA form or not, with primitive reductions only."""
    kinds = {Ref(name): kind for name, kind in declared_kinds(algorithm).items()}

    def expanded(expr: Expr) -> Expr:
        return _expanded(algorithm, expr, kinds)

    def changed(stmt: Assign) -> Assign:
        kinds[stmt.target] = kind_of(stmt.value, kinds.__getitem__)
        return replace(stmt, value=expanded(stmt.value))

    return replace(algorithm, rule=map_statements(algorithm.rule, changed, expanded))


def _expanded(algorithm: Algorithm, expr: Expr, kinds: dict[Ref, Kind]) -> Expr:
    expr = rebuild(expr, lambda child: _expanded(algorithm, child, kinds))
    if not isinstance(expr, Call) or expr.op not in _EXPANSIONS:
        return expr
    (x,) = expr.args
    sizes = _Sizes(kind_of(x, kinds.__getitem__).axes, Ref(algorithm.param))
    return _EXPANSIONS[expr.op](x, sizes)


@dataclass(frozen=True)
class _Sizes:
    """Expressions that count the elements of a value with these axes."""

    axes: Axes
    param: Ref

    def of_row(self) -> Expr:
        """Return the number of elements in a row."""
        size = width(self.axes)
        return self._size_of_param("cols" if size == "1" else size)

    def of_column(self) -> Expr:
        """Return the number of elements in a column."""
        size = height(self.axes)
        return self._size_of_param("rows" if size == "1" else size)

    def element_count(self) -> Expr:
        """Return the number of all elements.

        A parameter holds numel / (rows * cols) matrices. If a size of the value cancels a divisor,
        both are left out.
        """
        numel = self._size_of_param("numel")
        sizes = sorted(size for size in (height(self.axes), width(self.axes)) if size != "1")
        if self.axes is Axes.NONE or sizes == ["cols", "rows"]:
            return numel
        first, *others = sizes or ("1",)
        rows, cols = self._size_of_param("rows"), self._size_of_param("cols")
        divisor = {"rows": cols, "cols": rows}.get(first)
        if divisor is None:
            divisor, others = Call("*", (rows, cols)), sizes
        count = Call("/", (numel, divisor))
        for size in others:
            count = Call("*", (count, self._size_of_param(size)))
        return count

    def _size_of_param(self, size: str) -> Expr:
        return effective_rank(self.param.name) if size == RANK else Call(size, (self.param,))


def _sum_of_squares(x: Expr, word: str = "sum") -> Expr:
    return Call(word, (Call("**", (x, Const(2))),))


def _root(x: Expr) -> Expr:
    return Call("sqrt", (x,))


_EXPANSIONS: dict[str, Callable[[Expr, _Sizes], Expr]] = {
    "row_mean": lambda x, sizes: Call("/", (Call("row_sum", (x,)), sizes.of_row())),
    "col_mean": lambda x, sizes: Call("/", (Call("col_sum", (x,)), sizes.of_column())),
    "row_norm": lambda x, sizes: _root(_sum_of_squares(x, "row_sum")),
    "col_norm": lambda x, sizes: _root(_sum_of_squares(x, "col_sum")),
    "row_rms": lambda x, sizes: _root(Call("/", (_sum_of_squares(x, "row_sum"), sizes.of_row()))),
    "col_rms": lambda x, sizes: _root(
        Call("/", (_sum_of_squares(x, "col_sum"), sizes.of_column()))
    ),
    "mean": lambda x, sizes: Call("/", (Call("sum", (x,)), sizes.element_count())),
    "norm": lambda x, sizes: _root(_sum_of_squares(x)),
    "rms": lambda x, sizes: _root(Call("/", (_sum_of_squares(x), sizes.element_count()))),
}
