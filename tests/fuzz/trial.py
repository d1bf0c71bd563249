"""Run a rule in the lowerings; each step starts from the oracle's values, and must give them."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuzz import extra_inputs, group_reductions, programs
from fuzz.build import BuiltRule
from fuzz.finding import Finding, finding_of_exception
from fuzz.lowering_run import LoweringRun
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
from optgen.runtime import newton_schulz
from optgen.runtime.programs import MODE
from optgen.verification.compare_with_evaluator import iterate_exactly

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
    with _default_dtype(setting.dtype), _iterate_exactly(setting.dtype):
        return _Trial(rule, setting, counts or StepCounts()).run(lowerings)


class _Trial:
    """A run of a rule with one setting in several lowerings, and the findings so far."""

    def __init__(self, rule: BuiltRule, setting: Setting, counts: StepCounts) -> None:
        self.rule, self.setting, self.counts = rule, setting, counts
        self.dtype = getattr(torch, setting.dtype)
        self.generator = torch.Generator().manual_seed(setting.seed)
        self.findings: list[Finding] = []

    def run(self, lowerings: Sequence[str]) -> list[Finding]:
        initial_params = [self.draw_tensor(shape) for shape in self.setting.shapes]
        runs = {}
        for name in lowerings:
            with self.record_errors(name):
                runs[name] = LoweringRun(self.rule, name, initial_params, self.setting)
        if not runs:
            return self.findings
        group = next(iter(runs.values())).optimizer.param_groups[0]
        algorithm = self.rule.algorithm
        hypers = {h.name: group.get(h.name, h.default) for h in algorithm.hypers}
        values = [(param, dict[str, Any]()) for param in initial_params]
        for number in range(STEPS):
            grads = [self.draw_tensor(shape) for shape in self.setting.shapes]
            inputs = extra_inputs.draw_inputs(algorithm, initial_params, self.draw_tensor, number)
            expected: list[Step] = []
            with self.record_errors("oracle"):
                expected += self.expected_steps(hypers, values, grads, inputs)
            if not expected:
                break
            for name in list(runs):
                if not self.step(name, runs[name], grads, inputs, expected, number):
                    del runs[name]
            may_continue = (
                all(step.is_moderate() for step in expected) or not self.rule.algorithm.is_wide
            )
            pairs = enumerate(zip(values, expected, strict=True))
            values = [
                self.next_values(self.hypers_of(hypers, index), *before_and_step, may_continue)
                for index, before_and_step in pairs
            ]
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
                StepArguments(
                    {**self.hypers_of(hypers, index), **flags},
                    param,
                    grad,
                    state_and_inputs,
                    group,
                    index,
                )
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

    def hypers_of(self, hypers: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return the hyperparameters of a parameter's group; `hypers` are those of the first."""
        options = group_reductions.options_of_group(self.rule.algorithm, self.setting, index)
        return {**hypers, **options}

    def run_programs(
        self,
        runs: Mapping[str, LoweringRun],
        hypers: Mapping[str, Any],
        values: list[tuple[Tensor, dict[str, Any]]],
    ) -> None:
        """Run every program from these values, and compare the tensors that it writes.

        `train` comes first, from groups that are said to be in eval mode: after `eval`, it would
        put back what 16 bits have rounded, instead of running its program.
        """
        algorithm = self.rule.algorithm
        names = [name for name in runs if name in programs.LOWERINGS]
        for program in algorithm.programs:
            expected: list[tuple[dict[str, Expected], bool]] = []
            with self.record_errors("oracle"):
                expected += [
                    programs.expected_values(
                        algorithm, program.function, self.hypers_of(hypers, index), *each
                    )
                    for index, each in enumerate(values)
                ]
            for name in names if expected else ():
                runs[name].set_values(values)
                with self.record_errors(name), use_lowering(name):
                    for group in runs[name].optimizer.param_groups:
                        group[MODE] = program.mode != "train"
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
        run: LoweringRun,
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
                    message = f"keys {sorted(found)} for {sorted(step.values)}"
                    self.findings.append(self.make_finding(name, "wrong", message))
                    break
                self.compare(name, found, step, f"step {number + 1}, parameter {index}")
                if len(self.findings) > before:
                    break
        return len(self.findings) == before

    def compare(self, name: str, found: dict[str, Tensor], step: Step, where: str) -> None:
        """Record the first value that differs from the oracle's step."""
        if not step.sure:
            self.counts.incomparable += 1
            return
        is_comparable = all(bool(r.comparable.all()) for r in step.values.values())
        self.counts.compared += is_comparable
        self.counts.incomparable += not is_comparable
        for key, expected in step.values.items():
            difference = expected.first_difference(found[key])
            algorithm = self.rule.algorithm
            dtype = (
                self.dtype
                if key == PARAM
                else state_dtype(algorithm, key, torch.empty(0).to(self.dtype))
            )
            if key != "step" and found[key].dtype != dtype:
                difference = f"{found[key].dtype} for {dtype}"
            if difference:
                message = f"{key or 'the parameter'} {difference}, {where}"
                self.findings.append(self.make_finding(name, "wrong", message))
                return

    def next_values(
        self,
        hypers: Mapping[str, Any],
        before: tuple[Tensor, Any],
        expected: Step,
        may_continue: bool,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return values for the next step: those of the rule, or new ones if these became extreme.

        `may_continue` is False if a value became extreme that a reduction over parameters includes.
        """
        param = before[0]
        values = {key: each.value for key, each in expected.values.items()}
        if not (may_continue and expected.is_moderate()):
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

    def make_finding(self, name: str, kind: str, message: str) -> Finding:
        return Finding(kind, name, message, self.rule.text, self.setting)

    def draw_tensor(self, shape: Sequence[int]) -> Tensor:
        """Return normally distributed numbers, a few of them 0, in the dtype of the setting."""
        numbers = torch.randn(tuple(shape), generator=self.generator, dtype=torch.float64)
        becomes_zero = torch.rand(tuple(shape), generator=self.generator) < 0.04
        return numbers.masked_fill(becomes_zero, 0.0).to(self.dtype)


@contextlib.contextmanager
def _default_dtype(dtype: str) -> Iterator[None]:
    """Make scalar state float64 with float64 parameters, and float32 otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if dtype == "float64" else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _iterate_exactly(dtype: str) -> contextlib.AbstractContextManager[Any]:
    if dtype != "float64":
        return contextlib.nullcontext()
    return mock.patch.object(newton_schulz, "iterate", iterate_exactly)
