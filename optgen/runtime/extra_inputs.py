"""Optimizers with extra inputs: `step` takes tensors beside the gradients."""

from collections.abc import Callable, Sequence
from typing import Any, cast, overload

from torch import Tensor

from optgen.runtime.batch.check_extra_inputs import check_input_names
from optgen.runtime.light_optimizer import with_step_hooks
from optgen.runtime.optimizer import GeneratedOptimizer

InputList = Sequence[Tensor | None]

_step = cast(Any, GeneratedOptimizer.step).__wrapped__  # without hooks: the step below runs them


class InputOptimizer(GeneratedOptimizer):
    """An optimizer whose rule reads extra inputs: tensors that are passed to each step."""

    @overload
    def step(self, closure: None = None, **inputs: InputList | None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], **inputs: InputList | None) -> float: ...

    @with_step_hooks
    def step(
        self, closure: Callable[[], float] | None = None, **inputs: InputList | None
    ) -> float | None:
        """Perform a single optimization step.

        Args:
            closure: Reevaluates the model and returns the loss.
            **inputs: Extra inputs of the rule: for each parameter in the order of the groups, a
                tensor like the parameter, or None.

        Raises:
            TypeError: The rule has no such input, or an input has the wrong type or dtype.
            ValueError: An input has the wrong length or shape, or a tensor that the rule needs is
                missing.
            RuntimeError: An input is on another device than its parameter.
        """
        check_input_names(type(self).__name__, self.rule, inputs)
        self._context.extra_inputs = {key: each for key, each in inputs.items() if each is not None}
        try:
            return cast("float | None", _step(self, closure))
        finally:
            self._context.extra_inputs = {}
