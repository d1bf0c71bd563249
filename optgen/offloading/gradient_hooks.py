"""Take gradients away from the device while the backward pass makes them.

A hook copies each gradient into its bucket's open slot, and frees it. A slot is closed when its
bucket is complete, when one of its gradients comes again, or when another bucket needs a slot. The
worker then adds it to the gradients that are kept on the host, or steps it at once. A hook that
finds no free slot waits for the worker, so the ring bounds how much is under way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from optgen.offloading.buckets import Bucket, HostParam
from optgen.offloading.checks import check_gradient, check_kind
from optgen.offloading.pinned_ring import Ring
from optgen.offloading.worker import Worker
from optgen.runtime.tensors.dtensor import to_local
from optgen.runtime.torch_private import outside_dynamo


@dataclass(eq=False)
class Load:
    """The gradients in a slot, by the rows of their bucket.

    `begins` tells whether a gradient is the first of its parameter since the last step.
    """

    bucket: Bucket
    slot: int
    begins: dict[int, bool] = field(default_factory=dict)


class Collector:
    """The hooks that take gradients, and what they have taken since the last step.

    Args:
        worker: Its thread uses what arrives.
        ring: The slots.
        owners: The parameters on the host.
        limit: How many gradients a parameter may have in a step; None for any number.
        use: Called in the worker's thread with each closed load.

    `before` returns a function to call before each gradient is taken, or None. Its arguments are
    the gradient's parameter, and whether it is the first gradient since a step.
    """

    def __init__(
        self,
        worker: Worker,
        ring: Ring,
        buckets: Sequence[Bucket],
        owners: Mapping[Tensor, HostParam],
        limit: int | None,
        use: Callable[[Load], None],
    ) -> None:
        self._worker, self._ring, self._owners, self._limit = worker, ring, owners, limit
        self._use = use
        self.before: Callable[[], Callable[[Tensor, bool], None] | None] = lambda: None
        self._lock = threading.Lock()  # the backward passes of several devices have threads
        self._open: dict[int, Load] = {}  # by the index of the bucket; the oldest is first
        self.counts: dict[Tensor, int] = {}  # of gradients since the last step
        self._places: dict[Tensor, list[tuple[Bucket, int]]] = {}
        for bucket in buckets:
            for row, piece in enumerate(bucket.pieces):
                self._places.setdefault(piece.owner.param, []).append((bucket, row))
        hook = _weak_hook(self)
        self._handles: list[RemovableHandle] = [
            param.register_post_accumulate_grad_hook(hook)
            for param in owners
            if param.requires_grad
        ]

    def take_from_hook(self, param: Tensor) -> None:
        """Take a gradient that the backward pass has just made.

        Raises:
            RuntimeError: Another hook has taken it, and for the other reasons of `take`.
        """
        if param.grad is None:
            raise RuntimeError(
                f"the gradient of {self._owners[param].name} was taken by another hook, such as "
                "that of another optimizer which takes gradients away: close() that one, or let "
                "one optimizer step the parameter"
            )
        self.take(param)

    def take(self, param: Tensor) -> None:
        """Start the copy of a parameter's gradient, and free it.

        Raises:
            OffloadError: An earlier copy or step failed.
            RuntimeError: It is one gradient too many, or it does not fit the parameter.
        """
        grad, owner = param.grad, self._owners[param]
        if grad is None:
            return
        with self._lock:
            self._worker.check()
            check_gradient(param, grad, lambda: owner.name)
            check_kind(owner, self._ring.slot_bytes)
            count = self.counts.get(param, 0)
            if self._limit is not None and count >= self._limit:
                raise RuntimeError(
                    f"{owner.name} has gradient number {count + 1} since the last step, and a step "
                    f"takes {self._limit} at most: call step() before this backward pass, or make "
                    'the optimizer with accumulation=None, and another hide= than "backward"'
                )
            if (before := self.before()) is not None:
                before(param, not self.counts)
            local = to_local(grad.detach())
            self._ring.copies_wait(local.device)
            for bucket, row in self._places[param]:
                load = self._load_for(bucket, row)
                self._ring.receive(bucket, load.slot, [(row, local)])
                load.begins[row] = count == 0
                if len(load.begins) == len(bucket.pieces):
                    self._close(bucket)
            self.counts[param] = count + 1
            param.grad = None

    def _load_for(self, bucket: Bucket, row: int) -> Load:
        """Return the open load of a bucket, whose place for a row is empty."""
        load = self._open.get(bucket.index)
        if load is not None and row in load.begins:
            self._close(bucket)
            load = None
        if load is None:
            if not self._ring.free and len(self._open):
                self._close(next(iter(self._open.values())).bucket)
            self._worker.wait(lambda: bool(self._ring.free))
            load = self._open[bucket.index] = Load(bucket, self._ring.free.popleft())
        return load

    def _close(self, bucket: Bucket) -> None:
        load = self._open.pop(bucket.index)
        self._worker.submit(partial(self._run, load))

    def _run(self, load: Load) -> None:
        self._ring.wait_received(load.bucket, load.slot)
        self._use(load)
        self._ring.free.append(load.slot)

    def flush(self) -> None:
        """Close all loads: no further gradient comes before the step."""
        with self._lock:
            for load in list(self._open.values()):
                self._close(load.bucket)

    def restart(self) -> dict[Tensor, int]:
        """Begin the next step; return the numbers of gradients until now."""
        counts, self.counts = self.counts, {}
        return counts

    def go_on(self, counts: Mapping[Tensor, int]) -> None:
        """Let gradients since the last step be those, which are on the host."""
        self.counts = dict(counts)

    def abandon(self) -> None:
        """Forget all gradients, also those in slots."""
        with self._lock:
            self._open.clear()
            self.counts = {}

    @property
    def is_over(self) -> bool:
        """Tell whether the optimizer is closed, or was let go before its hooks were."""
        return self._worker.is_closed

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def _weak_hook(collector: Collector) -> Any:
    """Return a hook that does not keep the collector alive.

    The garbage collector does not see what a hook of a parameter refers to.
    """
    reference = weakref.ref(collector)

    @outside_dynamo  # compiled autograd would trace it
    def hook(param: Tensor) -> None:
        found = reference()
        if found is not None and not found.is_over:
            found.take_from_hook(param)

    return hook
