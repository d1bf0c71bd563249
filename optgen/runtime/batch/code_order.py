"""Tell whether kernels can read and write a batch's states of 8 bits in place."""

from optgen.runtime.batch.batch import Batch
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.layout import streams_to_copy
from optgen.runtime.tensors.quantized import QuantizedTensor


def codes_in_other_order(rule: Rule, batch: Batch) -> bool:
    """Tell whether a state of 8 bits lies in another order of memory than a kernel goes over.

    A kernel goes over memory in the parameter's order, or row by row if the rule draws random
    numbers. It cannot use a reordered copy of the state, because blocks of codes follow the state's
    order. A parameter may change its order between steps.
    """
    state_index = 1  # in the pair (param, state)
    return bool(rule.quantized_states) and any(
        state_index in streams_to_copy((param, state), by_matrix=rule.draws)
        for column in batch.states
        for param, state in zip(batch.params, column, strict=False)
        if type(state) is QuantizedTensor
    )


def codes_obstacle(rule: Rule, batch: Batch, lowering: str) -> str:
    """Return why a kernel of a fused lowering cannot go over a batch's codes; "" if it can."""
    if reason := rule.why_codes_are_not_read(lowering):
        return reason
    if codes_in_other_order(rule, batch):
        return "states of 8 bits in another order of memory than the kernel goes over"
    return ""
