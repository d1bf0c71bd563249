"""The base class of generated optimizers: a torch.optim.Optimizer whose rule is data."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from optgen.contract.states import VIEW
from optgen.runtime import take_step
from optgen.runtime.batch.check_params import (
    check_added_group,
    check_parameters,
    check_views,
    note_narrow_params,
    original_params,
    originals_after_load,
)
from optgen.runtime.batch.grad_scaler import report_skip
from optgen.runtime.batch.group_states import adopt_group_states, share_loaded_states
from optgen.runtime.batch.hyperparameters import (
    check_constructor_arguments,
    converter_of,
)
from optgen.runtime.batch.step_context import StepContext, placeholders_of, remove_placeholders
from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks
from optgen.runtime.rule import Rule
from optgen.runtime.state import checkpoint
from optgen.runtime.state.create import create_missing
from optgen.runtime.state.foreign_states import decode_foreign_states
from optgen.runtime.torch_private import (
    called_to_init_state,
    check_graph_capture,
    outside_dynamo,
    set_grad_enabled,
)


class GeneratedOptimizer(LightOptimizer):
    """A torch optimizer that takes its steps through the lowerings generated from one rule."""

    rule: ClassVar[Rule]
    lowerings: ClassVar[str]  # the name of the package with the generated lowerings

    def __new__(cls, *args: Any, **hypers: Any) -> Self:
        """Check the types of arguments before a generated constructor compares them with bounds."""
        check_constructor_arguments(cls, args, hypers)
        return super().__new__(cls)

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._reset_context()
        self._capturable_groups = frozenset()
        # Keys that torch's class lacks enter groups and checkpoints only if a value was given.
        super().__init__(params, self.rule.drop_unset(defaults))
        check_parameters(self)
        if defaults.get("fused"):
            if defaults.get("differentiable"):
                raise RuntimeError("`fused` does not support `differentiable`")
            if defaults.get("foreach"):
                raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        if any(state.eager for state in self.rule.states):
            self._create_state(lambda param: True)
        self._offer_amp_scaling()

    @classmethod
    def hyper_annotations(cls) -> dict[str, Any]:
        """Return the annotations of the generated constructor; a subclass may have others."""
        for base in reversed(cls.__mro__):
            if vars(base).get("lowerings") == cls.lowerings:
                return get_type_hints(vars(base)["__init__"])
        return {}

    def _reset_context(self) -> None:
        self._context = StepContext()

    def _offer_amp_scaling(self) -> None:
        """Let GradScaler leave unscaling to the step, but only with fused=True.

        Some frameworks refuse to clip the gradients of an optimizer that offers this.
        """
        if self.defaults.get("fused"):
            self._step_supports_amp_scaling = True

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @with_step_hooks
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform a single optimization step.

        Args:
            closure: Reevaluates the model and returns the loss.
        """
        self._undo_dynamo_writes()
        check_graph_capture(self)
        was_enabled = torch.is_grad_enabled()
        set_grad_enabled(self.defaults.get("differentiable", False))
        try:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if not self.state and called_to_init_state():
                self._create_state(lambda param: param.requires_grad, before_step=False)
                self._context.placeholders = placeholders_of(self.state)
            elif self._context.skip_report:
                with report_skip(self, self._context.skip_report):
                    take_step.step(self)
            else:
                take_step.step(self)
        finally:
            set_grad_enabled(was_enabled)
        return loss

    @outside_dynamo
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; the group's own hyperparameters override the defaults."""
        noted_groups = self._capturable_groups
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            converter_of(self).check_arguments(group)
            check_added_group(self, len(self.param_groups) - 1)
            take_step.check_groups_agree(self)
            group.update(self.rule.fixed_values(group["params"]))
            adopt_group_states(self)
        except BaseException:
            self.param_groups.pop()
            self._capturable_groups = noted_groups
            raise
        if not self.rule.elementwise:
            self._context.original_params[id(group)] = original_params(group)

    @staticmethod
    def _check_param(param: Tensor) -> None:
        """Raise a ValueError for a parameter that the rule cannot take; subclasses override it."""

    @outside_dynamo
    def init_state(self) -> None:
        """Create the state that the first step would create, without taking a step.

        Fresh states, such as SGD's momentum, are left to the first step, which treats them
        specially.
        """
        self._create_state(lambda param: param.requires_grad)

    def _create_state(self, is_chosen: Callable[[Tensor], bool], before_step: bool = True) -> None:
        """Create the missing states of the chosen parameters.

        With `before_step`, the fresh states are left to the first step, as in `init_state`.
        """
        check_views(self)
        note_narrow_params(self.rule, self.param_groups)
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable"))):
            for group in self.param_groups:
                params = filter(is_chosen, group["params"])
                create_missing(
                    self.rule,
                    self.state,
                    group,
                    params,
                    self.defaults,
                    before_step,
                    self.param_groups,
                )

    def _share_memory(self, *keys: str) -> None:
        """Move the states of these keys to shared memory."""
        for key in keys:
            for values in self.state.values():
                values[key].share_memory_()

    @outside_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class, or of torch's class of the same name.

        A state gets its parameter's dtype, as in torch, unless the rule declares a dtype. States of
        8 bits of bitsandbytes, and of 8 bits, 4 bits and fp8 of torchao, are decoded.
        """
        state_dict = decode_foreign_states(self, state_dict)
        with checkpoint.preserve_declared_dtypes(self, self.rule):
            super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self._undo_dynamo_writes()
        # A copy could not tell placeholders from states that training has made.
        remove_placeholders(self._context.placeholders, self.state)
        self._context.placeholders = []
        packed: dict[str, Any] = super().__getstate__()
        return packed

    def __setstate__(self, state: dict[str, Any]) -> None:
        previous_groups = self.__dict__.get("param_groups", [])
        if previous_groups:  # a load, not a copy
            check_views(self, state["param_groups"])
        old_original_params = [
            self._context.original_params.get(id(group)) for group in previous_groups
        ]
        super().__setstate__(state)
        # torch's method adds a default for `differentiable`, which may be an optional key here.
        self.defaults = self.rule.drop_unset(self.defaults)
        self._reset_context()
        if not self.rule.elementwise:
            self._context.original_params = originals_after_load(
                old_original_params, self.param_groups
            )
        optional_keys = [VIEW, *dict(self.rule.optional)]
        checkpoint.backfill(
            self, previous_groups, added=dict(self.rule.backfill), optional=optional_keys
        )
        for group in self.param_groups:
            group.update(self.rule.fixed_values(group["params"]))
        checkpoint.restore_declared_dtypes(self)
        checkpoint.scalars_to_tensors(self)
        share_loaded_states(self)
        self._note_capturable_groups()
        self._offer_amp_scaling()

    def _portable_state_dict(self, packed: dict[str, Any]) -> dict[str, Any]:
        return checkpoint.portable_state_dict(self, packed)


if TYPE_CHECKING:

    class LoadedOptimizer(GeneratedOptimizer):
        """The type of a loaded class for type checkers: they cannot read the class's spec."""

        def __init__(self, params: ParamsT, *args: Any, **hypers: Any) -> None: ...
        def train(self) -> None: ...
        def eval(self) -> None: ...
        @overload
        def step(self, closure: None = None, **inputs: Any) -> None: ...
        @overload
        def step(self, closure: Callable[[], float], **inputs: Any) -> float: ...
        def step(
            self, closure: Callable[[], float] | None = None, **inputs: Any
        ) -> float | None: ...
