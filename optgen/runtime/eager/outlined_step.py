"""Take a step of a rule on whole matrices: torch's matrix words, and fused sweeps between them.

The step is eager code, the generated module `outlined`, on every device. It calls a function for
each sweep, and a fused backend runs the functions.
"""

import importlib
from collections.abc import Callable, Set
from typing import TypeAlias, cast

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.eager.backend import EagerBackend
from optgen.runtime.protocols import HasLowerings

FunctionObstacle: TypeAlias = Callable[[HasLowerings, torch.device, Set[torch.dtype]], str]
"""The method of that name of a backend."""


class OutlinedStep(EagerBackend):
    """Backend of rules on whole matrices, whose sweeps are run by a fused backend.

    Args:
        function_obstacle: The method of the fused backend.
    """

    def __init__(self, function_obstacle: FunctionObstacle) -> None:
        super().__init__("outlined")
        self._function_obstacle = function_obstacle

    def obstacle(self, lowered: HasLowerings, batch: Batch) -> str:
        """Return a short reason why the sweeps cannot take this batch; "" if they can."""
        rule = lowered.rule
        if not rule.sweeps:
            return rule.why_no_sweeps
        if batch.dispatch_key.sharding:  # owners of shards step with foreach
            return rule.why_uncut
        if class_name := batch.overriding_class:
            return f"a state of class {class_name}"
        if batch.group.get("capturable"):  # then the functional form keeps numbers on the device
            return "capturable=True, and the step reads its numbers on the host"
        device, dtypes = batch.params[0].device, _sweep_dtypes(batch)
        for name in rule.sweeps:
            module = importlib.import_module(f"{lowered.lowerings}.{name}")
            sweep = cast(HasLowerings, module._update)
            if reason := self._function_obstacle(sweep, device, dtypes):
                return reason
        return ""


def _sweep_dtypes(batch: Batch) -> set[torch.dtype]:
    """Return the dtypes of the tensors that sweeps get; the step copies 16 bits to float32."""
    are_double = {param.dtype == torch.float64 for param in batch.params}
    return {torch.float64 if is_double else torch.float32 for is_double in are_double}
