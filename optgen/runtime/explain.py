"""Tell which lowering the next step will take."""

import torch

from optgen.contract.states import VIEW
from optgen.runtime.backends import BACKENDS
from optgen.runtime.batch.batch import Batch, ViewCopy
from optgen.runtime.batch.check_params import check_views
from optgen.runtime.batch.gather import States, make_batch
from optgen.runtime.batch.gradients import checked_gradients, params_and_gradients
from optgen.runtime.batch.step_context import OptimizerWithContext
from optgen.runtime.choose_lowering import choose
from optgen.runtime.eager.owner_step import travelling_axes
from optgen.runtime.joint_step import OptimizerOfMembers
from optgen.runtime.light_optimizer import LightOptimizer
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import Group, Rule
from optgen.runtime.torch_private import numel

_PHASE_BY_PHASE = "phase by phase with the ranks that hold the other shards"
_EACH_PARAMETER_ON_ONE_RANK = "each whole parameter on one of the ranks that hold its shards"
_EACH_MATRIX_ON_ITS_RANK = "each whole matrix on the rank that holds it"
_MATRICES = (
    "torch computes the matrices, and {:.0%} of the other memory traffic is that of fused sweeps"
)
_IGNORED_SCALE = (
    "; the clipping of all gradients changes only their weight in the momentum, because the rule "
    "makes it orthogonal"
)


def explain(optimizer: torch.optim.Optimizer) -> str:
    """Tell which lowering the next step will take, and why.

    The text has a line per parameter group, or several if one call cannot take the whole group. If
    `create_optimizer` made one optimizer of two, the first lines say what each of them gets.
    """
    return "\n".join(_lines(optimizer, first_index=0))


def _lines(optimizer: torch.optim.Optimizer, first_index: int) -> list[str]:
    """Return the lines of an optimizer; the indices of its groups begin at `first_index`."""
    if isinstance(optimizer, LightOptimizer) and (lines := optimizer.explained(first_index)):
        return lines
    if isinstance(optimizer, LightOptimizer) and (members := optimizer.members_by_group()):
        lines = optimizer.notes() if isinstance(optimizer, OptimizerOfMembers) else []
        for index, member in members:
            lines += _lines_of_member(member, first_index + index)
        return [*dict.fromkeys(lines)]  # several members may step one group
    if isinstance(optimizer, LightOptimizer) and not isinstance(optimizer, GeneratedOptimizer):
        return [
            f"group {first_index}: by hand: {type(optimizer).__name__} has no rule to generate from"
        ]
    if not isinstance(optimizer, GeneratedOptimizer):
        cls = optimizer if isinstance(optimizer, type) else type(optimizer)
        name = f"{'the class ' if cls is optimizer else ''}{cls.__module__}.{cls.__name__}"
        raise TypeError(
            f"explain takes an instance of an optimizer that optgen generated; this is {name}"
        )
    return _lines_of_groups(optimizer, first_index)


def _lines_of_member(member: torch.optim.Optimizer, first_index: int) -> list[str]:
    """Return the lines of an optimizer that another one steps; it may be of another library."""
    if isinstance(member, LightOptimizer):
        return _lines(member, first_index)
    name = f"{type(member).__module__}.{type(member).__name__}"
    indices = range(first_index, first_index + len(member.param_groups))
    return [f"group {index}: {name}, which optgen did not generate" for index in indices]


def _lines_of_groups(optimizer: GeneratedOptimizer, first_index: int) -> list[str]:
    """Return the lines of the groups of a generated optimizer."""
    check_views(optimizer)
    lines, rule = [], optimizer.rule
    for index, group in enumerate(optimizer.param_groups, first_index):
        for batch in _preview(optimizer, group):
            if not batch.params:
                lines.append(f"group {index}: no parameters")
                continue
            lowering, reason = choose(optimizer, batch)
            if batch.dispatch_key.sharding is not None:
                reason = f"{reason}; {_sharded_note(rule, batch)}"
            if rule.why_uncut and BACKENDS[lowering].device:
                reason = f"{reason}; {_MATRICES.format(rule.fused_share)}"
            lines.append(
                f"group {index}: {BACKENDS[lowering].title}: {reason}"
                f"{_view_note(batch)}{_sparse_note(rule, batch)}{_codes_note(rule, batch)}"
                f"{_IGNORED_SCALE if rule.ignores_scale else ''}"
            )
    return [*dict.fromkeys(lines)]  # a group's batches may have the same line


def _preview(optimizer: OptimizerWithContext, group: Group) -> list[Batch]:
    """Return the batches of the next step, made without touching any state.

    Before the first backward pass there are no gradients; the parameters then take their place.
    """
    members, grads = params_and_gradients(group)
    if not members:
        members = grads = list(group["params"])
        if optimizer.rule.gradient == "sparse_only":
            grads = [
                torch.zeros(p.shape, dtype=p.dtype, device=p.device, layout=torch.sparse_coo)
                for p in members
            ]
    gradients, states = checked_gradients(optimizer, group, grads), States(optimizer.state)
    required = (state.step_argument for state in optimizer.rule.inputs if state.when is None)
    # Extra inputs are known only in a step, so the parameters stand in for them.
    inputs = {key: {id(member): member for member in members} for key in required}
    batch = make_batch(optimizer, group, members, gradients, states, inputs=inputs)
    return batch.parts or [batch]


def _sharded_note(rule: Rule, batch: Batch) -> str:
    """Tell how sharded parameters are stepped."""
    if not rule.why_uncut:
        return _PHASE_BY_PHASE
    sharding = batch.dispatch_key.sharding
    axes = sharding.sharded_axes() if sharding else ()
    any_travels = any(travelling_axes(rule, axes, seen.dim()) for seen in batch.seen_params)
    return _EACH_PARAMETER_ON_ONE_RANK if any_travels else _EACH_MATRIX_ON_ITS_RANK


def _view_note(batch: Batch) -> str:
    """Tell in which shape the rule sees the parameters; "" if it sees their own shapes."""
    if not (batch.meta_views or batch.in_pieces):
        return ""
    copies = [each for each in batch.view_copies if isinstance(each, ViewCopy)]
    copy_note = ", of copies: the memory of some tensors has no such view"
    return f"; view={batch.group.get(VIEW)}{copy_note if copies else ''}"


def _codes_note(rule: Rule, batch: Batch) -> str:
    """Tell that a rule with quantized states has none of them here; "" if it has one."""
    states = [state for state in rule.quantized_states if state.is_present(batch.group)]
    params = list(zip(batch.members, batch.seen_params or batch.members, strict=True))
    if not rule.quantized_states or any(
        state.suits(seen, batch.group) and numel(param) >= state.min_elements
        for state in states
        for param, seen in params
    ):
        return ""
    return "; no state of these parameters is quantized, so `quantized` saves nothing"


def _sparse_note(rule: Rule, batch: Batch) -> str:
    """Tell how the step will treat sparse gradients; "" if there is nothing to tell."""
    if batch.dispatch_key.sparse_grad:
        return "; sparse gradients by the rows they touch"
    if batch.in_pieces:
        return ""  # no view takes sparse gradients
    if not any(param.grad is not None and param.grad.is_sparse for param in batch.members):
        return ""
    dense_keys = [
        state.key for state in rule.states if not state.rows and state.is_present(batch.group)
    ]
    if not dense_keys:
        return ""
    return f"; sparse gradients made dense: {dense_keys[0]} changes as a whole"
