"""Give gradients the placements of their parameters, before all checks of a step.

A redistribution is a collective: a rank that begins it waits for the other ranks. A check can fail
on one rank alone. So the redistributions come first, and a rank that fails later has taken part in
them. In a step with a consensus, the ranks compare placements first. In a step without a consensus,
they cannot: the gradients of a parameter must have the same placements on all ranks.
"""

from collections.abc import Sequence

from torch import Tensor

from optgen.runtime.batch.gradients import ParamsAndGradients, params_and_gradients
from optgen.runtime.protocols import OptimizerLike
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.tensors.dtensor import (
    misplaced_gradients,
    placement_text,
    redistribute_gradients,
)


def placed_gradients(
    optimizer: OptimizerLike,
    step_grads: Sequence[Tensor | None] | None,
    consensus: Consensus | None,
) -> list[ParamsAndGradients]:
    """Return the gradients of every group, each with the placements of its parameter.

    `step_grads` are gradients for the only group; None stands for the parameters' own gradients.

    Raises:
        RuntimeError: A gradient cannot be placed as its parameter is, or the ranks of a consensus
            are about to take different steps.
    """
    groups = [params_and_gradients(group, step_grads) for group in optimizer.param_groups]
    if not any(misplaced_gradients(*group) for group in groups):
        return groups
    if consensus:
        consensus.note_everywhere([list(map(placement_text, grads)) for _, grads in groups])
        consensus.agree()
    return [(params, redistribute_gradients(params, grads)) for params, grads in groups]
