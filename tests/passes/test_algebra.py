"""Prove with SymPy that a plan and its rule compute equal values: their difference is zero."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import sympy
from planning import PASSES, RULES

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Const, Expr, Linear, Program, Ref
from optgen.ir.plan import Plan
from optgen.passes.prepare_rule import add_maximize, use_printed_names
from optgen.passes.ranges import proven_ranges

Symbols = dict[str, Any]
_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
    "neg": lambda a: -a,
    "sqrt": sympy.sqrt,
    "abs": sympy.Abs,
    "maximum": sympy.Max,
    "copy": lambda a: a,
}


class SymbolicRun:
    """Runs a rule or a plan on symbols. `answers` has the answer of each condition by its name."""

    def __init__(self, algorithm: Algorithm, answers: dict[str, bool]) -> None:
        self.algorithm = algorithm
        self.answers = answers
        self.values: Symbols = {}
        ranges = proven_ranges(algorithm)
        for name in (algorithm.param, algorithm.grad, *(s.symbol for s in algorithm.states)):
            # A second moment is not negative; the other symbols may have any sign.
            is_nonnegative = Ref(name) in ranges and ranges[Ref(name)].low >= 0
            self.values[name] = sympy.Symbol(name, real=True, nonnegative=is_nonnegative or None)
        self.values["step"] = sympy.Symbol("step", positive=True, integer=True)
        for hyper in algorithm.hypers:
            fractions = tuple(fraction(hyper.name, i) for i in range(hyper.size))
            symbol = fractions[0] if hyper.bounds.le == 1 else positive_symbol(hyper.name)
            self.values[hyper.name] = fractions if hyper.type == "tuple" else symbol

    def run(self, program: Program) -> None:
        for stmt in program:
            if isinstance(stmt, Assign):
                self.values[stmt.target.name] = self.value(stmt.value)
            else:
                self.run(stmt.then if self.holds(stmt.condition) else stmt.orelse)

    def holds(self, condition: Expr) -> bool:
        match condition:
            case Call("truth" | "fresh", (Ref(name),)) | Ref(name):
                return self.answers[name]
            case Call(">", (Ref(name), _)):
                return self.answers[name]
        raise AssertionError(condition)

    def value(self, expr: Expr) -> Any:
        match expr:
            case Const(value):
                return sympy.Rational(str(value))
            case Ref(name):
                return self.values[name]
            case Call("item", (Ref(name), Const(int() as index))):
                return self.values[name][index]
            case Call("**", (base, Ref("step"))):
                return fraction(f"{self.value(base)} to the t", 0)
            case Call("-", (Const(1), b)):  # as one quotient, which SymPy knows to be positive
                return sympy.cancel(1 - self.value(b))
            case Call(word, args):
                return _OPERATORS[word](*map(self.value, args))
            case Linear(terms):
                return sympy.Add(
                    *(
                        sympy.Mul(self.value(t.coefficient), *map(self.value, t.factors))
                        / sympy.Mul(*map(self.value, t.divisors))
                        for t in terms
                    )
                )


def positive_symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, positive=True)


def fraction(name: str, index: int) -> Any:
    """Return x / (1 + x), whose powers SymPy knows to be between 0 and 1."""
    x = sympy.Symbol(f"{name}{index}", positive=True)
    return x / (1 + x)


CONDITION_NAMES = {  # read by the conditions of each rule
    "Adam": ("weight_decay", "decoupled_weight_decay", "amsgrad", "maximize"),
    "NAdam": ("weight_decay", "decoupled_weight_decay"),
    "RAdam": ("weight_decay", "decoupled_weight_decay", "rho"),
    "Adamax": ("weight_decay", "maximize"),
    "Adadelta": ("weight_decay", "maximize"),
    "Adagrad": ("weight_decay", "maximize"),
    "RMSprop": ("weight_decay", "momentum", "centered", "maximize"),
    "SGD": ("weight_decay", "momentum", "nesterov", "momentum_buffer"),
}


def condition_answers(name: str) -> Iterator[dict[str, bool]]:
    """Yield every combination of answers to the conditions of a rule."""
    for answers in itertools.product((False, True), repeat=len(CONDITION_NAMES[name])):
        yield {"maximize": False} | dict(zip(CONDITION_NAMES[name], answers, strict=True))


def is_zero(difference: Any) -> bool:
    """Tell whether the difference is 0 for all values; the slower simplifications come last."""
    return any(change(difference) == 0 for change in (sympy.expand, sympy.together, sympy.simplify))


def run_plan(plan: Plan, plan_run: SymbolicRun) -> None:
    plan_run.run(plan.scalars)
    for sweep in plan.sweeps:
        plan_run.run(sweep.body)


def wrong_values(name: str, plan: Plan, answers: dict[str, bool]) -> list[str]:
    """Return the names of the parameter and states that a plan and its rule compute differently."""
    algorithm = use_printed_names(add_maximize(RULES[name]))
    rule_run, plan_run = SymbolicRun(algorithm, answers), SymbolicRun(algorithm, answers)
    rule_run.run(algorithm.rule)
    run_plan(plan, plan_run)
    stored = (algorithm.param, *(s.symbol for s in algorithm.states))
    return [name for name in stored if not is_zero(rule_run.values[name] - plan_run.values[name])]


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("name", CONDITION_NAMES)
def test_a_plan_computes_what_its_rule_computes(name: str, passes: str) -> None:
    plan = PASSES[passes](RULES[name])
    for answers in condition_answers(name):
        assert wrong_values(name, plan, answers) == [], answers


def test_the_proof_fails_for_a_wrong_plan() -> None:
    """The wrong plan negates the value of SGD's last statement, `p = p - lr * g`."""
    plan = PASSES["plan"](RULES["SGD"])
    (sweep,) = plan.sweeps
    *others, last = sweep.body
    assert isinstance(last, Assign)
    negated = replace(last, value=Call("neg", (last.value,)))
    wrong = replace(plan, phases=(replace(sweep, body=(*others, negated)),))
    for answers in condition_answers("SGD"):
        assert wrong_values("SGD", wrong, answers) == [plan.algorithm.param]
