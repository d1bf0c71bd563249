"""Run a rule in the lowerings and compare with the oracle; each step starts from its values."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from owners import step_by_owners
from sharded_step import step_on_shards
from torch import Tensor

from fuzz import extra_inputs, group_reductions, programs
from fuzz.build import BuiltRule
from fuzz.finding import Finding, finding_of_exception
from fuzz.oracle import (
    PARAM,
    Expected,
    Step,
    StepArguments,
    fresh_states,
    state_dtype,
    step_by_rule,
    steps_by_rule,
)
from fuzz.time_limit import time_limit
from optgen import use_lowering
from optgen.ir.ops import OPS
from optgen.runtime import matrix_ops
from optgen.runtime.eager import call
from optgen.runtime.tensors.quantized import to_numbers

LOWERINGS = ("forloop", "foreach", "fused_cpu", "fused_triton", "functional", "sharded")
STEPS = 3


@dataclass(frozen=True)
class Setting:
    """The input of a run: the constructor's arguments, shapes, a dtype and a seed."""

    hypers: Mapping[str, Any] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] = ((5,), (2, 3), ())
    dtype: str = "float64"
    seed: int = 0
    viewed: bool = False  # parameters have other shapes, and groups view them in `shapes`


@dataclass
class StepCounts:
    """Counts of parameters' steps, compared and incomparable, and the time of lowerings."""

    compared: int = 0
    incomparable: int = 0
    seconds: Counter[str] = field(default_factory=Counter)  # seconds, by lowering


def run(
    rule: BuiltRule, setting: Setting, lowerings: Sequence[str], counts: StepCounts | None = None
) -> list[Finding]:
    """Run a rule in some lowerings, and return the findings."""
    with _default_dtype(setting.dtype), _orthogonalize_exactly(setting.dtype):
        return _Trial(rule, setting, counts or StepCounts()).run(lowerings)


class _Trial:
    """A run of a rule with one setting in several lowerings, and the findings so far."""

    def __init__(self, rule: BuiltRule, setting: Setting, counts: StepCounts) -> None:
        self.rule, self.setting, self.counts = rule, setting, counts
        self.dtype = getattr(torch, setting.dtype)
        self.generator = torch.Generator().manual_seed(setting.seed)
        self.findings: list[Finding] = []

    def run(self, lowerings: Sequence[str]) -> list[Finding]:
        start = [self.draw_tensor(shape) for shape in self.setting.shapes]
        runs = {}
        for name in lowerings:
            with self.record_errors(name):
                runs[name] = _LoweringRun(self.rule, name, start, self.setting)
        if not runs:
            return self.findings
        group = next(iter(runs.values())).optimizer.param_groups[0]
        algorithm = self.rule.algorithm
        hypers = {h.name: group.get(h.name, h.default) for h in algorithm.hypers}
        values = [(param, dict[str, Any]()) for param in start]
        for number in range(STEPS):
            grads = [self.draw_tensor(shape) for shape in self.setting.shapes]
            inputs = extra_inputs.draw_inputs(algorithm, start, self.draw_tensor, number)
            expected: list[Step] = []
            with self.record_errors("oracle"):
                expected += self.expected_steps(hypers, values, grads, inputs)
            if not expected:
                break
            for name in list(runs):
                if not self.step(name, runs[name], grads, inputs, expected, number):
                    del runs[name]
            is_moderate = (
                all(step.is_moderate() for step in expected) or not self.rule.algorithm.is_wide
            )
            pairs = zip(values, expected, strict=True)
            values = [self.next_values(hypers, before, step, is_moderate) for before, step in pairs]
            for each in runs.values():
                each.set_values(values)
        self.run_programs(runs, hypers, values)
        return self.findings

    def expected_steps(
        self,
        hypers: Mapping[str, Any],
        values: list[tuple[Tensor, dict[str, Any]]],
        grads: list[Tensor],
        inputs: extra_inputs.ExtraInputs,
    ) -> list[Step]:
        """Return the step of every parameter by the rule, without the states of extra inputs."""
        algorithm = self.rule.algorithm
        all_arguments, input_keys = [], set[str]()
        for index, ((param, state), grad) in enumerate(zip(values, grads, strict=True)):
            flags, inputs_of_param = extra_inputs.flags_and_states(algorithm, inputs, index)
            group = group_reductions.group_index(self.setting, index)
            state_and_inputs = {**state, **inputs_of_param}
            all_arguments.append(
                StepArguments({**hypers, **flags}, param, grad, state_and_inputs, group, index)
            )
            input_keys |= set(inputs_of_param)
        if algorithm.is_wide:
            steps = steps_by_rule(algorithm, all_arguments)
        else:
            steps = [step_by_rule(algorithm, arguments) for arguments in all_arguments]
        return [
            Step({key: x for key, x in step.values.items() if key not in input_keys}, step.sure)
            for step in steps
        ]

    def run_programs(
        self,
        runs: Mapping[str, _LoweringRun],
        hypers: Mapping[str, Any],
        values: list[tuple[Tensor, dict[str, Any]]],
    ) -> None:
        """Run every program from these values, and compare the tensors that it writes."""
        algorithm = self.rule.algorithm
        names = [name for name in runs if name in programs.LOWERINGS]
        for program in reversed(
            algorithm.programs
        ):  # eval first, because a new optimizer is in train mode
            expected: list[tuple[dict[str, Expected], bool]] = []
            with self.record_errors("oracle"):
                expected += [
                    programs.expected_values(algorithm, program.function, hypers, *each)
                    for each in values
                ]
            for name in names if expected else ():
                runs[name].set_values(values)
                with self.record_errors(name), use_lowering(name):
                    getattr(runs[name].optimizer, program.mode)()
                    for index, (written, sure) in enumerate(expected):
                        found = runs[name].values(index)
                        written_values = {key: found[key] for key in written}
                        self.compare(
                            name, written_values, Step(written, sure), f"{program.mode}, {index}"
                        )

    def step(
        self,
        name: str,
        run: _LoweringRun,
        grads: list[Tensor],
        inputs: extra_inputs.ExtraInputs,
        expected: list[Step],
        number: int,
    ) -> bool:
        """Take a step and compare its results; tell whether they are right."""
        before = len(self.findings)
        with self.record_errors(name):
            run.step(grads, inputs)
            if self.rule.algorithm.zero_grad and name not in ("functional", "sharded"):
                grads_left = [param.grad for param in run.params if param.grad is not None]
                if any(bool(grad.any()) for grad in grads_left):
                    self.findings.append(self.make_finding(name, "wrong", "a gradient is not zero"))
            for index, step in enumerate(expected):
                found = run.values(index)
                if found.keys() != step.values.keys():
                    what = f"keys {sorted(found)} for {sorted(step.values)}"
                    self.findings.append(self.make_finding(name, "wrong", what))
                    break
                self.compare(name, found, step, f"step {number + 1}, parameter {index}")
                if len(self.findings) > before:
                    break
        return len(self.findings) == before

    def compare(self, name: str, found: dict[str, Tensor], step: Step, where: str) -> None:
        if not step.sure:
            self.counts.incomparable += 1
            return
        comparable = all(bool(r.comparable.all()) for r in step.values.values())
        self.counts.compared += comparable
        self.counts.incomparable += not comparable
        for key, expected in step.values.items():
            wrong = expected.first_difference(found[key])
            algorithm = self.rule.algorithm
            dtype = (
                self.dtype
                if key == PARAM
                else state_dtype(algorithm, key, torch.empty(0).to(self.dtype))
            )
            if key != "step" and found[key].dtype != dtype:
                wrong = f"{found[key].dtype} for {dtype}"
            if wrong:
                what = f"{key or 'the parameter'} {wrong}, {where}"
                self.findings.append(self.make_finding(name, "wrong", what))
                return

    def next_values(
        self,
        hypers: Mapping[str, Any],
        before: tuple[Tensor, Any],
        expected: Step,
        is_moderate: bool,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return values for the next step: those of the rule, or new ones if these became extreme.

        `is_moderate` is False if another parameter of a shared reduction became extreme.
        """
        param = before[0]
        values = {key: each.value for key, each in expected.values.items()}
        if not (is_moderate and expected.is_moderate()):
            param = self.draw_tensor(param.shape)
            fresh = fresh_states(self.rule.algorithm, hypers, param)
            return param, fresh | ({"step": float(values["step"])} if "step" in values else {})
        state = {}
        for key, value in values.items():
            if key == "step":
                state[key] = float(value)
            elif key != PARAM:
                state[key] = value.to(state_dtype(self.rule.algorithm, key, param))
        return values[PARAM].to(self.dtype), state

    @contextlib.contextmanager
    def record_errors(self, name: str) -> Iterator[None]:
        """Record an exception as a finding; otherwise count the time."""
        started = time.process_time()
        try:
            with time_limit():
                yield
            self.counts.seconds[name] += time.process_time() - started  # type: ignore[assignment]
        except Exception as error:
            self.findings.append(finding_of_exception(error, name, self.rule.text, self.setting))

    def make_finding(self, name: str, kind: str, what: str) -> Finding:
        return Finding(kind, name, what, self.rule.text, self.setting)

    def draw_tensor(self, shape: Sequence[int]) -> Tensor:
        """Return normally distributed numbers, a few of them 0, in the dtype of the setting."""
        numbers = torch.randn(tuple(shape), generator=self.generator, dtype=torch.float64)
        rare = torch.rand(tuple(shape), generator=self.generator) < 0.04
        return numbers.masked_fill(rare, 0.0).to(self.dtype)


class _LoweringRun:
    """An optimizer that one lowering steps, and its parameters."""

    def __init__(self, rule: BuiltRule, name: str, start: list[Tensor], setting: Setting) -> None:
        functional = name == "functional"
        self.name, self.rule = name, rule
        self.axis = setting.seed  # the sharded axis, modulo the number of axes
        self.shapes, self.viewed = [x.shape for x in start], setting.viewed
        self.has_own_groups = group_reductions.group_index(setting, 1) == 1
        given = [x.reshape(_other_shape(x)) if self.viewed else x for x in start]
        self.params = [torch.nn.Parameter(x.clone(), requires_grad=not functional) for x in given]
        self.optimizer = rule.cls(self.groups(), **setting.hypers, differentiable=functional)
        self.forced_lowering = {"functional": "forloop", "sharded": "foreach"}.get(name, name)

    def groups(self) -> list[Any]:
        """Return the parameters; with views and for some seeds, return a group for each."""
        if self.viewed:
            pairs = zip(self.params, self.shapes, strict=True)
            return [{"params": [param], "view": tuple(shape)} for param, shape in pairs]
        return [{"params": [p]} for p in self.params] if self.has_own_groups else self.params

    def step(self, grads: list[Tensor], inputs: extra_inputs.ExtraInputs) -> None:
        for param, grad in zip(self.params, grads, strict=True):
            param.grad = grad.clone().reshape(param.shape)
        is_sharded = self.name == "sharded"
        with (
            self.on_two_ranks() if is_sharded else contextlib.nullcontext(),
            use_lowering(self.forced_lowering),
        ):
            self.optimizer.step(
                **{key: self._in_param_shapes(given) for key, given in inputs.items()}
            )

    def on_two_ranks(self) -> contextlib.AbstractContextManager[None]:
        """Let two ranks take the steps, with foreach's functions."""
        if self.rule.cls.rule.why_uncut:
            return two_ranks_as_owners(self.rule, self.axis, self.optimizer.param_groups[0])
        return two_ranks_with_shards(self.rule, self.axis)

    def _in_param_shapes(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return extra inputs in the shapes of the parameters instead of the views' shapes."""
        pairs = zip(given, self.params, strict=True)
        return [None if each is None else each.view(param.shape) for each, param in pairs]

    def values(self, index: int) -> dict[str, Tensor]:
        param = self.params[index]
        state = self.optimizer.state[param]
        found = {PARAM: param, **{key: torch.as_tensor(value) for key, value in state.items()}}
        group = self.group(index)
        found |= {key: group[key] for key in self.group_state_keys}
        found = {key: to_numbers(value) for key, value in found.items()}
        if self.viewed:
            like = [PARAM, *(s.key for s in self.rule.cls.rule.states if s.shape == "like")]
            found |= {key: found[key].view(self.shapes[index]) for key in like if key in found}
        return found

    @property
    def group_state_keys(self) -> list[str]:
        """Return the keys of the states that a param group holds."""
        return [state.key for state in self.rule.cls.rule.group_states]

    def group(self, index: int) -> dict[str, Any]:
        """Return the group of a parameter."""
        groups = self.optimizer.param_groups
        return groups[index if self.has_own_groups else 0]

    def set_values(self, values: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """Copy these values to parameters and states."""
        for index, (param, (value, state)) in enumerate(zip(self.params, values, strict=True)):
            with torch.no_grad():
                param.copy_(value.reshape(param.shape))
                for key, each in state.items():
                    if key != "step":
                        shared = key in self.group_state_keys
                        holder = self.group(index) if shared else self.optimizer.state[param]
                        holder[key].copy_(each.reshape(holder[key].shape))


def _other_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return a shape with as many elements but another number of axes."""
    return (1, tensor.numel()) if tensor.dim() == 1 else (tensor.numel(),)


@contextlib.contextmanager
def two_ranks_with_shards(rule: BuiltRule, axis: int) -> Iterator[None]:
    """Let two ranks with shards take foreach's steps, through `update_sharded` if it exists."""

    def load(package: str, module: str, function: str) -> Any:
        lists = import_module(f"{package}.{module}")
        update = getattr(lists, function.replace("update", "update_sharded"), None)
        rule_info = rule.cls.rule

        def step(*columns: list[Tensor], **keywords: Any) -> None:
            first = columns[0][0]
            states = [state.shape for state in rule_info.states if state.suits(first)]
            shapes = ["like", "like", *states, *["scalar"] * (rule_info.step is not None)]
            step_on_shards(request_reductions, axis % first.dim(), shapes, columns, **keywords)

        def request_reductions(*columns: list[Tensor], **keywords: Any) -> Iterator[Any]:
            yield from update(*columns, **keywords) or ()  # without phases, `update` returns None

        def step_unless_0_dim(*columns: list[Tensor], **keywords: Any) -> None:
            is_0_dim = columns[0][0].dim() == 0
            (getattr(lists, function) if is_0_dim else step)(*columns, **keywords)

        return step_unless_0_dim if update else getattr(lists, function)

    with mock.patch.object(call, "load", load):
        yield


@contextlib.contextmanager
def two_ranks_as_owners(rule: BuiltRule, axis: int, group: Mapping[str, Any]) -> Iterator[None]:
    """Let two ranks with shards take foreach's steps; each parameter is stepped by its owner."""
    rule_info = rule.cls.rule

    def load(package: str, module: str, function: str) -> Any:
        step_whole = getattr(import_module(f"{package}.{module}"), function)

        def step(*columns: list[Tensor], **keywords: Any) -> Any:
            dims = columns[0][0].dim()
            if not dims:
                return step_whole(*columns, **keywords)
            steps = step_by_owners(rule_info, group, step_whole, axis % dims, columns, keywords)
            return steps if rule_info.wide else next(steps, None)

        return step

    with mock.patch.object(call, "load", load):
        yield


@contextlib.contextmanager
def _default_dtype(dtype: str) -> Iterator[None]:
    """Make scalar state float64 with float64 parameters, and float32 otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if dtype == "float64" else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _orthogonalize_in_float64(
    tensors: Sequence[Tensor], coefficients: Any, steps: float, eps: float
) -> list[Tensor]:
    least = torch.tensor(eps, dtype=torch.float64)
    meaning = OPS["orthogonalize"].meaning
    return [meaning(x, coefficients, steps, least) for x in tensors]


def _orthogonalize_exactly(dtype: str) -> contextlib.AbstractContextManager[Any]:
    if dtype != "float64":
        return contextlib.nullcontext()
    return mock.patch.object(matrix_ops, "orthogonalize", _orthogonalize_in_float64)
