"""Take a step again: the C++ reader finds the tensors, and a plan that takes them launches.

The reader compares dtypes and sizes of all tensors with those of a launch plan, and fills in their
addresses. The addresses that have changed are uploaded, which mostly are none, and the kernels are
launched. Nothing waits for the device.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from threading import Lock

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.hyperparameters import converter_of
from optgen.runtime.fused_triton.kept_plans import KeptPlans
from optgen.runtime.fused_triton.launch_plan import LaunchPlan
from optgen.runtime.fused_triton.planned_tensors import PlannedTensors
from optgen.runtime.lowerings import current_forced_lowering
from optgen.runtime.reader.object_layout import UnknownLayoutError
from optgen.runtime.reader.step_reader import StepReader, can_read
from optgen.runtime.reader.streams import MAX_STREAMS, RuleStreams, TableArrays
from optgen.runtime.reader.tensor_reader import Answer, Reader, reader
from optgen.runtime.rule import Group, OptimizerLike
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import capturing, is_plain_class

ALL_DTYPES = sum(1 << code for code in DTYPE_CODES.values())
_MAX_PLANS = 16
_DONE, _NOT_AS_PLANNED = int(Answer.DONE), int(Answer.NOT_AS_PLANNED)


class CachedLaunches:
    """The last plans of an optimizer, and the reader that finds their tensors in each step."""

    zeroes_gradients = False
    skips_on_device = True

    def __init__(
        self, tensor_reader: Reader, optimizer: OptimizerLike, device: torch.device, by_shape: bool
    ) -> None:
        self.forced_lowering = current_forced_lowering()
        self._rule = optimizer.rule
        self._check_hypers = converter_of(optimizer).check
        self._busy = Lock()  # held during a step: two threads would overwrite the columns
        self._planned: list[PlannedTensors] = []  # the latest first
        self._hyper_changes = 0
        self._gathered_steps = 0  # since the last step that was repeated
        groups, streams = optimizer.param_groups, RuleStreams(optimizer.rule)
        count = sum(len(group["params"]) for group in groups)
        self._columns = TableArrays(len(streams.keys), count, by_shape)
        self._step = StepReader(
            tensor_reader,
            tensor_reader.request_for(self._columns, streams, ALL_DTYPES, device),
            streams,
            groups,
            [ALL_DTYPES] * len(groups),
            set(map(id, groups)),
            self._set_hypers,
            by_matrix=by_shape,
        )
        request = self._step.request
        request.zeroes_gradients = optimizer.rule.zero_grad
        # Gathered steps check step counts in the host's memory, too, and never wait for a device.
        request.has_step_count = self._rule.step is not None and device.type == "cpu"
        self._params = _params_of(groups)

    @classmethod
    def of(
        cls, optimizer: OptimizerLike, batches: Sequence[Batch], plan: LaunchPlan
    ) -> CachedLaunches | None:
        """Return the cached step after a plan has updated all batches.

        Return None if the next step must gather its tensors.
        """
        rule, groups, streams = optimizer.rule, optimizer.param_groups, RuleStreams(optimizer.rule)
        if rule.wide or rule.group_states or rule.step == "int" or not plan.can_repeat:
            return None
        if len(streams.keys) > MAX_STREAMS or not can_read(streams, groups):
            return None
        if not all(map(is_readable, batches)):
            return None
        tensor_reader = reader()
        if tensor_reader is None:
            return None
        device = batches[0].params[0].device
        try:
            return cls(tensor_reader, optimizer, device, plan.needs_shapes)
        except (UnknownLayoutError, KeyError):
            return None

    def is_for(self, optimizer: OptimizerLike) -> bool:
        """Tell whether this object can repeat steps with the optimizer's groups as they are now."""
        groups = optimizer.param_groups
        return (
            self.forced_lowering == current_forced_lowering()
            and self._params == _params_of(groups)
            and self._read_groups(groups)
        )

    def add(
        self,
        plan: LaunchPlan,
        batches: Sequence[Batch],
        groups: Sequence[Group],
        kept_plans: KeptPlans,
    ) -> None:
        """Let a plan that has just updated these batches take later steps too.

        Plans that are no longer kept are dropped here, too.
        """
        group_ids = list(map(id, groups))
        indices = [group_ids.index(batch.group_id) for batch in batches]
        params = chain.from_iterable(group["params"] for group in groups)
        planned = PlannedTensors(plan, batches, indices, params, self._columns)
        kept = (each for each in self._planned if each.plan in kept_plans)
        others = [each for each in kept if not planned.replaces(each)]
        self._planned = [planned, *others[: _MAX_PLANS - 1]]

    def is_worth_a_plan(self) -> bool:
        """Tell whether a gathered step should add its plan.

        If none of the last plans could be repeated, only few of the next are tried.
        """
        self._gathered_steps += 1
        tries = self._gathered_steps
        return tries <= _MAX_PLANS or tries % _MAX_PLANS == 0

    def check(self, optimizer: OptimizerLike) -> bool:
        """Tell whether `run` would take the step; change nothing."""
        if capturing() or not self._busy.acquire(blocking=False):
            return False
        try:
            return self._read(optimizer, takes_step=False) is not None
        finally:
            self._busy.release()

    def run(self, optimizer: OptimizerLike) -> bool:
        """Take a step; or change nothing and return False if it must gather its tensors."""
        if capturing() or not self._busy.acquire(blocking=False):
            return False  # a graph needs tables of its own, or another thread takes a step
        try:
            planned = self._read(optimizer, takes_step=True)
            if planned is None:
                return False
            self._gathered_steps = 0
            planned.launch(optimizer, optimizer.param_groups, self._hyper_changes)
            return True
        finally:
            self._busy.release()

    def _read(self, optimizer: OptimizerLike, takes_step: bool) -> PlannedTensors | None:
        """Read the groups and tensors; return the plan that takes them, or None."""
        groups = optimizer.param_groups
        if not self._read_groups(groups):
            return None
        for planned in self._planned:
            if not planned.plan.is_for_current_streams():
                continue
            self._step.request.planned = planned.address
            answer = self._step.read_tensors(groups, optimizer.state, takes_step)
            if answer == _DONE:
                return planned
            if answer != _NOT_AS_PLANNED:
                return None
        return None

    def _read_groups(self, groups: Sequence[Group]) -> bool:
        """Read the groups; return False if the step may need another lowering."""
        changed = self._step.read_groups(groups)
        self._hyper_changes += bool(changed)
        return changed is not None

    def _set_hypers(self, index: int, group: Group) -> None:
        """Check the hyperparameters of a group; a plan uploads them later."""
        self._check_hypers(self._rule.hyper_values(group))


def is_readable(batch: Batch) -> bool:
    """Tell whether the reader can read the tensors of a batch, which the plan must not copy."""
    has_plain_members = all(is_plain_class(type(member)) for member in batch.members)
    return (
        has_plain_members
        and not (batch.view_copies or batch.has_codes)
        and not any(member.is_complex() for member in batch.members)
    )


def _params_of(groups: Sequence[Group]) -> array[int]:
    """Return the identities of all parameters."""
    return array("Q", (id(param) for group in groups for param in group["params"]))
