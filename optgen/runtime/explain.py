"""Tell which lowering the next step will take."""

from typing import TYPE_CHECKING

import torch

from optgen.runtime.assemble import States, assemble, visible
from optgen.runtime.choice import TITLES, UNFUSED, choose
from optgen.runtime.collect import with_gradient
from optgen.runtime.rule import Rule
from optgen.runtime.state import Group
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer

_PHASE_BY_PHASE = "phase by phase with the processes that hold the other parts"


def explain(optimizer: torch.optim.Optimizer) -> str:
    """Tell, in a line per parameter group, which lowering the next step will take, and why."""
    from optgen.runtime.base import LightOptimizer
    from optgen.runtime.optimizer import GeneratedOptimizer

    if isinstance(optimizer, LightOptimizer) and not isinstance(optimizer, GeneratedOptimizer):
        return f"group 0: by hand: {type(optimizer).__name__} has no rule to generate from"
    if not isinstance(optimizer, GeneratedOptimizer):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise TypeError(
            "explain tells about an optimizer that optgen generated, made of its parameters; "
            f"this is {'the class ' * isinstance(optimizer, type)}{kind.__module__}.{kind.__name__}"
        )
    lines, rule = [], optimizer.rule
    for index, group in enumerate(optimizer.param_groups):
        for work in _preview(optimizer, group):
            if not work.params:
                lines.append(f"group {index}: no parameters")
                continue
            lowering, reason = choose(optimizer, work)
            if work.trait.placed is not None and lowering in UNFUSED:
                lowering, reason = "foreach", f"{reason}; in lists"
            if work.trait.placed is not None:
                reason = f"{reason}; {_PHASE_BY_PHASE}"
            lines.append(f"group {index}: {TITLES[lowering]}: {reason}{_sparse(rule, work)}")
    return "\n".join(lines)


def _preview(optimizer: "GeneratedOptimizer", group: Group) -> list[Work]:
    """The works of the next step, made without touching any state.

    Before the first backward pass there are no gradients; each parameter stands for its own.
    """
    members, grads = with_gradient(group)
    if not members:
        members = grads = list(group["params"])
        if optimizer.rule.gradient == "sparse_only":
            grads = [
                torch.zeros(p.shape, dtype=p.dtype, device=p.device, layout=torch.sparse_coo)
                for p in members
            ]
    seen, states = visible(optimizer, group, grads), States(optimizer.state)
    work = assemble(optimizer, group, members, seen, states)
    return work.parts or [work]


def _sparse(rule: Rule, work: Work) -> str:
    """Tell what becomes of sparse gradients, if there are any."""
    if work.trait.rows:
        return "; sparse gradients by the rows they touch"
    if not any(param.grad is not None and param.grad.is_sparse for param in work.members):
        return ""
    whole = [s.key for s in rule.states if not s.rows and s.present(work.group)]
    return f"; sparse gradients made dense: {whole[0]} changes as a whole" if whole else ""
