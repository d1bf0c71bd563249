"""Tell which batches only the for-loop can take, one tensor at a time."""

from optgen.runtime.batch.batch import Batch


def why_forloop_only(batch: Batch) -> str:
    """Return the reason why only the for-loop can take a batch; "" if there is none."""
    if batch.group.get("differentiable"):
        return "differentiable"
    if batch.dispatch_key.sparse_param:
        return "sparse parameters"
    if batch.dispatch_key.subclass:
        return f"tensors of class {batch.dispatch_key.subclass}"
    is_repeated = batch.dispatch_key.occurrence > 0
    return "a parameter stands in the group more than once" if is_repeated else ""
