"""Check by an optimizer's rule whether a keyed optimizer can wrap it."""

from torch.optim import Optimizer

from optgen.runtime.light_optimizer import needs_closure
from optgen.runtime.programs import ModeOptimizer
from optgen.runtime.rule import Rule


def check_state_by_parameter(optimizer: object) -> None:
    """Raise a TypeError for an optimizer with states that a keyed checkpoint cannot hold.

    A keyed checkpoint cannot hold states of 8 bits, or states in param groups.
    """
    group_entry = "its mode, train or eval," if isinstance(optimizer, ModeOptimizer) else ""
    rule = getattr(type(optimizer), "rule", None)
    for state in rule.quantized_states if isinstance(rule, Rule) else ():
        raise TypeError(
            f"{type(optimizer).__name__} has the state {state.key} in 8 bits, which keyed "
            "checkpoints cannot hold: use this optimizer without a keyed one around it"
        )
    for state in rule.group_states if isinstance(rule, Rule) else ():
        group_entry = group_entry or f"the state {state.key}"
    if group_entry:
        raise TypeError(
            f"{type(optimizer).__name__} keeps {group_entry} in its param groups, which keyed "
            "checkpoints do not hold by default: use this optimizer without a keyed one around it"
        )


def check_is_class(optimizer_class: object) -> None:
    """Raise a TypeError for a name, or for an optimizer that is made already."""
    if not callable(optimizer_class):
        what = optimizer_class if isinstance(optimizer_class, str) else type(optimizer_class)
        raise TypeError(
            f"an update in the backward pass takes a class and its arguments, such as AdamW, "
            f"lr=1e-3, not {what!r}: optgen.optim.optimizer_class finds the class of a name"
        )


def check_updates_one_by_one(optimizer: Optimizer) -> None:
    """Raise a TypeError for an optimizer that cannot update its parameters one by one."""
    rule = getattr(type(optimizer), "rule", None)
    if isinstance(rule, Rule) and rule.wide:
        raise TypeError(
            f"{type(optimizer).__name__} reduces over several parameters, so it needs all their "
            "gradients at once: take its step after the backward pass"
        )
    if needs_closure(optimizer):
        raise TypeError(
            f"{type(optimizer).__name__}.step needs a closure, which makes all gradients several "
            "times: an update in the backward pass has each of them once"
        )
