"""Compare the lowerings of a spec with the evaluator, which computes by its rule in float64."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optgen import __version__, jit
from optgen.contract.quantization import CODE_MAPS
from optgen.contract.states import AT_LEAST_FLOAT32
from optgen.ir import evaluate
from optgen.ir.algorithm import Algorithm, Hyper, State
from optgen.ir.evaluate import Member, evaluate_together
from optgen.ir.meanings import MEANINGS
from optgen.ir.ops import LINEAR_ALGEBRA
from optgen.runtime.newton_schulz import Iterations
from optgen.runtime.rule import Rule
from optgen.spec.read_spec import read_base, read_spec
from optgen.verification.case import BOUND, STEPS, Case, Inputs, Problem, Reference
from optgen.verification.compare_with_reference import (
    larger_error,
    larger_errors,
    max_differences,
    run_case,
    runnable_lowerings,
    trajectory,
)
from optgen.verification.evidence import Row
from optgen.verification.patch_attribute import patch_attribute

REFERENCE = "its own rule"
"""The name of the evaluator in the column of references."""
SHAPES = ((5,), (), (1, 2), (4, 4), (3, 5), (37, 19), (2, 7, 3), (2, 3, 2, 2))
"""The shapes to compare, of which a rule for matrices takes some."""
BOUNDS = {torch.float64: BOUND, torch.float32: 1e-3}
"""For each dtype, the bound where the rule does not magnify rounding, for elements up to 1."""
_MARGIN = 10.0
"""A difference may be this many times as large as the one that rounding alone makes."""
_MAGNIFIED = 10.0
"""A bound that is this many times as large as that of its dtype shows no small mistake."""
_TELLING = 1e-2
"""A larger bound says little."""
_ROUNDINGS = 4
"""The number of roundings by which a noisy step changes an element."""
_LARGEST = 1e6
"""The comparison ends before a step that makes an element larger than this."""


class NotComparedError(Exception):
    """The evaluator has nothing to compare the rule with; the message says why."""


@dataclass(frozen=True)
class Setting:
    """Arguments of the constructor, and what a row calls them.

    With `narrow`, the flags `fixed("narrow")` are true as if a parameter had 16 bits. So the arms
    that compensate 16 bits are compared in float64, where a small mistake shows.
    """

    label: str
    options: Mapping[str, Any]
    narrow: bool = False

    def flags(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the groups of all optimizers have these flags."""
        if not self.narrow:
            return contextlib.nullcontext()
        return patch_attribute(
            Rule, "narrow_values", lambda rule, _: dict.fromkeys(rule.narrow_flags, True)
        )


class EvaluatorReference:
    """A reference that takes steps by the evaluator, from the hyperparameters of one group.

    If it is noisy, each step changes every element of gradients, parameters and states, and of the
    operands of linear algebra, by chance, as much as a few roundings to its dtype may change it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        group: Mapping[str, Any],
        params: list[Tensor],
        dtype: torch.dtype,
        is_noisy: bool = False,
    ) -> None:
        self.algorithm, self.dtype, self.is_noisy = algorithm, dtype, is_noisy
        self.params = [param.to(dtype).double() for param in params]
        self.hypers = {h.name: group.get(h.name, h.default) for h in algorithm.hypers}
        self.states: list[dict[str, Any]] = [{} for _ in params]
        self.generator = torch.Generator().manual_seed(0)

    def step(self, gradients: list[Tensor], inputs: Inputs) -> None:
        """Take a step of every parameter."""
        for state in self.algorithm.extra_inputs():
            for states, value in zip(self.states, inputs[state.step_argument], strict=True):
                states[state.key] = value
        given = {s.when: True for s in self.algorithm.extra_inputs() if s.when}
        members = [
            Member(
                {**self.hypers, **given},
                param,
                self._with_noise(grad).to(self.dtype),
                state,
                self.dtype,
                self.dtype,
                index,
            )
            for index, (param, grad, state) in enumerate(
                zip(self.params, gradients, self.states, strict=True)
            )
        ]
        with patch_attribute(evaluate, "MEANINGS", MEANINGS | self._noisy_words()):
            results = evaluate_together(self.algorithm, members)
        self.params = [self._with_noise(param) for param, _ in results]
        self.states = [self._states_with_noise(states) for _, states in results]

    def _with_noise(self, tensor: Tensor, eps: float = 0.0) -> Tensor:
        if not self.is_noisy:
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=self.generator) * 2 - 1
        return tensor * (1 + _ROUNDINGS * max(eps, torch.finfo(self.dtype).eps) * signs)

    def _noisy_words(self) -> dict[str, Callable[..., Any]]:
        """Return words of linear algebra whose operands have noise, as rounded products have.

        In float32, an eigenvalue of 0 of `g @ transpose(g)` is not 0.
        """
        words = LINEAR_ALGEBRA if self.is_noisy else ()
        return {word: functools.partial(self._with_noisy_operands, word) for word in words}

    def _with_noisy_operands(self, word: str, *operands: Any) -> Any:
        is_matrix = (isinstance(operand, Tensor) and operand.ndim > 1 for operand in operands)
        noisy = (
            self._with_noise(operand) if each else operand
            for operand, each in zip(operands, is_matrix, strict=True)
        )
        return MEANINGS[word](*noisy)

    def _states_with_noise(self, states: dict[str, Any]) -> dict[str, Any]:
        tensors = (s for s in self.algorithm.states if s.shape != "scalar" and s.key in states)
        noisy = {s.key: self._with_noise(states[s.key], _eps(s, states[s.key])) for s in tensors}
        return states | noisy


@dataclass(frozen=True)
class _Bound:
    """The largest allowed difference of an element of a parameter.

    It is magnified if rounding alone changes the parameter much more than in most rules. In SOAP,
    a gradient of 3 x 5 has two eigenvectors of eigenvalue 0. Any basis of them is right, rounding
    chooses one, and the steps depend on it. A square gradient leaves no choice.
    """

    value: float
    is_magnified: bool


@dataclass(frozen=True, eq=False)
class CheckedRule:
    """The rule of a spec file, its class, and the shapes that the class takes."""

    path: Path
    algorithm: Algorithm
    cls: type[Optimizer]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, path: Path) -> CheckedRule:
        """Read a spec file and load its class.

        Raises:
            SpecError: the spec has a mistake.
            NotComparedError: the evaluator has nothing to compare it with.
        """
        spec = jit.named_spec(path)
        algorithm = _with_rule_of_base(read_spec(spec)[0])
        if algorithm.is_function:
            raise NotComparedError(f"{path}: an optimizer is compared, and this is a function")
        if algorithm.gradient == "sparse_only":
            raise NotComparedError(
                f"{path}: dense gradients are compared, and this class takes sparse ones"
            )
        loaded = jit.load(spec)
        shapes = tuple(shape for shape in SHAPES if _refusal(loaded, {}, shape) is None)
        if not shapes:
            raise NotComparedError(f"{path}: {_refusal(loaded, {}, (4, 4))}")
        return CheckedRule(path, algorithm, loaded, shapes)

    def comparisons(self) -> Iterator[Comparison]:
        """Yield a comparison for each dtype of each setting that the constructor accepts."""
        for setting in settings(self.algorithm):
            if all(_refusal(self.cls, setting.options, shape) is None for shape in self.shapes):
                for dtype in BOUNDS:
                    yield Comparison(self, setting, dtype)


def _with_rule_of_base(algorithm: Algorithm) -> Algorithm:
    """Return a derived algorithm with the rule that it takes from its base."""
    base = read_base(algorithm, jit.data_folder("specs"))
    if base is None:
        return algorithm
    hypers = tuple(algorithm.hyper(hyper.name) or hyper for hyper in base.hypers)
    return replace(base, name=algorithm.name, hypers=hypers)


def settings(algorithm: Algorithm) -> Iterator[Setting]:
    """Yield the defaults, the flags of 16 bits, and settings that change one hyperparameter."""
    yield Setting("defaults", {})
    if any(hyper.narrow for hyper in algorithm.hypers):
        yield Setting("as for 16 bits", {}, narrow=True)
    for hyper in algorithm.hypers:
        if not (hyper.fixed or hyper.set_by_step):
            for value in _other_values(hyper):
                yield Setting(f"{hyper.name}={value!r}", {hyper.name: value})


def _other_values(hyper: Hyper) -> Iterator[Any]:
    """Yield values besides the default: other choices, and a number if the default is 0 or None."""
    if hyper.type == "flag":
        yield not hyper.default
    elif hyper.type == "choice":
        yield from (choice for choice in hyper.choices if choice != hyper.default)
    elif hyper.type == "number" and not hyper.default:
        yield from itertools.islice(filter(hyper.bounds.admits, (0.1, 1)), 1)


def iterate_exactly(tensors: Sequence[Tensor], iterations: Iterations) -> list[Tensor]:
    """Return the last iterates, computed in the dtype of the matrices.

    It stands for `newton_schulz.iterate`, which all lowerings look up when they call it.
    """
    meaning, least = MEANINGS["orthogonalize"], torch.tensor(iterations.eps, dtype=torch.float64)
    numbers = iterations.coefficients, iterations.steps, least, iterations.divisor
    return [meaning(tensor, *numbers) for tensor in tensors]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison of a rule in one setting and one dtype, which makes one row."""

    rule: CheckedRule
    setting: Setting
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.rule.algorithm.name} ({self.dtype_name}, {self.setting.label})"

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, such as float64."""
        return str(self.dtype).removeprefix("torch.")

    def rows(self) -> Iterator[Row]:
        """Run every lowering that runs here, and yield a row.

        There is a second row if rounding alone changes some of the parameters much. The first row
        is without them, so that its bound shows a small mistake.
        """
        rule = self.rule
        with _default_dtype(self.dtype), self.setting.flags():
            case, steps, bounds = self._bounded_case()
            errors = {
                lowering: run_case(case, rule.cls, lowering).errors
                for lowering in runnable_lowerings(rule.cls)
            }
        steady = {i: b.value for i, b in enumerate(bounds) if not b.is_magnified}
        magnified = {i: b.value for i, b in enumerate(bounds) if b.is_magnified}
        shapes = _shapes_text(rule.shapes[i] for i in magnified)
        if steady:
            yield self._row(f", without {shapes}" if shapes else "", steps, steady, errors)
        if magnified:
            yield self._row(f", {shapes}" if steady else "", steps, magnified, errors)

    def _row(
        self,
        label: str,
        steps: int,
        bounds: Mapping[int, float],
        errors: Mapping[str, Sequence[float]],
    ) -> Row:
        """Return the row of the parameters that have a bound; keys are their positions."""
        passed = steps > 0 and all(
            each[i] <= bound for each in errors.values() for i, bound in bounds.items()
        )
        return Row(
            name=self.rule.algorithm.name,
            reference=f"{REFERENCE} ({self.dtype_name}, {self.setting.label}{label})",
            version=__version__,
            source=str(self.rule.path),
            steps=steps,
            dtype=self.dtype_name,
            errors={
                lowering: functools.reduce(larger_error, (each[i] for i in bounds))
                for lowering, each in errors.items()
            },
            bound=max(bounds.values()),
            passed=passed,
        )

    def _bounded_case(self) -> tuple[Case, int, list[_Bound]]:
        """Return the case, with as many steps as its numbers stay moderate, and the bounds.

        The bound of a parameter is that of the dtype, or ten times what rounding alone changes if
        that is more.
        """
        case, rounded = self.case(), self.case(is_noisy=True)
        sizes = [1.0] * len(self.rule.shapes)
        shifts, steps = [0.0] * len(sizes), 0
        for params, others in zip(trajectory(case).params, trajectory(rounded).params, strict=True):
            now = max_differences(params, [torch.zeros_like(param) for param in params])
            if not all(size <= _LARGEST for size in now):
                break
            sizes, steps = larger_errors(sizes, now), steps + 1
            shifts = larger_errors(shifts, max_differences(params, others))
        least = [BOUNDS[self.dtype] * size for size in sizes]
        bounds = [
            _Bound(max(b, _MARGIN * s), _MARGIN * s > _MAGNIFIED * b)
            for b, s in zip(least, shifts, strict=True)
        ]
        return replace(case, steps=steps), steps, bounds

    def case(self, is_noisy: bool = False) -> Case:
        """Return the comparison as a case, whose reference has noise."""

        def make_reference(params: list[Tensor]) -> Reference:
            group = self.rule.cls(params, **self.setting.options).param_groups[0]
            return EvaluatorReference(self.rule.algorithm, group, params, self.dtype, is_noisy)

        return Case(
            self.rule.algorithm.name,
            make_reference,
            self.setting.options,
            shapes=self.rule.shapes,
            inputs=self.inputs if any(self.rule.algorithm.extra_inputs()) else None,
            iterate=iterate_exactly,
            dtype=self.dtype,
        )

    def inputs(self, problem: Problem, params: list[Tensor], step: int) -> Inputs:
        """Return positive tensors for the extra inputs of a step."""
        values = problem.hessian_diagonals(params, step)
        return {state.step_argument: values for state in self.rule.algorithm.extra_inputs()}


def _shapes_text(shapes: Iterable[tuple[int, ...]]) -> str:
    """Return shapes as text, such as 4 x 4."""
    return ", ".join(" x ".join(map(str, shape)) or "a number" for shape in shapes)


def _eps(state: State, value: Tensor) -> float:
    """Return the machine epsilon of the dtype that a state declares; 0 if it declares none."""
    if state.is_quantized and value.numel() >= state.min_elements:
        return CODE_MAPS[state.map].error
    if state.dtype in (None, AT_LEAST_FLOAT32):
        return 0.0
    name = "float32" if state.is_quantized else str(state.dtype)
    return torch.finfo(getattr(torch, name)).eps


def remarks(row: Row) -> Iterator[str]:
    """Yield what a reader of the row should know about its bound and its steps."""
    if not row.reference.startswith(REFERENCE):
        return
    if row.bound > _TELLING:
        yield "rounding alone may change numbers this much in this rule, so the row says little"
    if not row.steps:
        yield "the first step makes numbers that are infinite, NaN or above 1e6: nothing to compare"
    elif row.steps < STEPS:
        yield f"after {row.steps} steps the rule makes numbers that are too large to compare"


def _refusal(
    cls: type[Optimizer], options: Mapping[str, Any], shape: tuple[int, ...]
) -> ValueError | None:
    """Return the error with which a class refuses a parameter of a shape; None if it takes it."""
    try:
        cls([torch.zeros(shape)], **options)
    except ValueError as error:
        return error
    return None


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make states that are numbers float64 beside float64 parameters, and else float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
