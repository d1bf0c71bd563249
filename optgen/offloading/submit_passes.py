"""Decide what the worker does, and wait for it: passes, hidden or not, and weights that changed.

`bucket_pipeline.py` runs a pass in the worker's thread, `bucket_kernel.py` calls the kernel, and
`pinned_ring.py` copies.
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.utils.weak import WeakTensorKeyDictionary

from optgen.offloading.bucket_pipeline import BucketWork, Pass, Pipeline
from optgen.offloading.buckets import Bucket, HostParam
from optgen.offloading.forward_waits import ForwardWaits
from optgen.offloading.host_side import HostSide
from optgen.offloading.worker import OffloadError, Worker
from optgen.runtime.tensors.dtensor import memory_version, to_local
from optgen.runtime.torch_private import data_ptr, fsdp_gathers_with

_Version = tuple[int, int]
_UNKNOWN: _Version = (-1, 0)
_last_steppers: Any = WeakTensorKeyDictionary()
"""The stepper that stepped a parameter last, weakly referenced."""


def _version(param: Tensor) -> _Version:
    """Return the number of changes of a parameter's memory, and its address."""
    return memory_version(param), data_ptr(to_local(param.detach()))


class Stepper:
    """The passes of an optimizer.

    Args:
        worker: The thread that runs them.
    """

    host: HostSide  # set whenever the set of parameters changes

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._reference = weakref.ref(self)
        self._versions: dict[Tensor, _Version] = {}  # as the last step left the parameters
        self._pass_number = 0
        self._needed_pass: dict[Tensor, int] = {}  # the last pass that steps each parameter
        self._is_hidden = False  # whether nobody has waited for the end of the last step
        self._waits: ForwardWaits | None = None
        self._waiter: Worker | None = None  # it waits on the host while the worker goes on

    def hide_behind(self, module: nn.Module) -> None:
        """Let each module of a model wait for its own weights."""
        self._waits = ForwardWaits(module, self._wait_for)
        weakref.finalize(self, self._waits.remove)
        if any(fsdp_gathers_with(each) for each in module.modules()):
            self._waiter = Worker(self.worker.time_limit)
            self._finalizer = weakref.finalize(self, self._waiter.close)

    def note_weights(self, param: Tensor) -> None:
        """Note that a parameter's float32 weights round to it now."""
        if param not in self._versions:
            self._versions[param] = _version(param)

    def doubt_weights(self, param: Tensor) -> None:
        """Let the float32 weights of a parameter follow it by value in the next step."""
        self._versions[param] = _UNKNOWN

    def has_changed(self, param: Tensor) -> bool:
        """Tell whether a parameter may have changed since the last step."""
        return _version(param) != self._versions[param]

    def works(
        self, grads: Mapping[Tensor, Tensor], on_host: Mapping[Tensor, int]
    ) -> list[BucketWork]:
        """Return the work of a step, in the order in which the next forward pass needs it.

        Gradients are those in `grads`, or on the host already if parameters are in `on_host`.
        """
        return [self._work(bucket, grads, on_host) for bucket in self._ordered_buckets()]

    def _work(
        self, bucket: Bucket, grads: Mapping[Tensor, Tensor], on_host: Mapping[Tensor, int]
    ) -> BucketWork:
        params = [piece.owner.param for piece in bucket.pieces]
        if self.host.collector is not None:
            stepped = frozenset(row for row, param in enumerate(params) if param in on_host)
            return BucketWork(bucket, stepped, None, self._changed(bucket))
        found = {
            row: to_local(grads[param].detach())
            for row, param in enumerate(params)
            if param in grads
        }
        return BucketWork(bucket, frozenset(found), found, self._changed(bucket))

    def _changed(self, bucket: Bucket) -> frozenset[int]:
        """Return the rows of a bucket whose parameters have changed since the last step."""
        return frozenset(
            row for row, piece in enumerate(bucket.pieces) if self.has_changed(piece.owner.param)
        )

    def _ordered_buckets(self) -> list[Bucket]:
        if self._waits is None:
            return self.host.buckets
        order = self._waits.order()
        last = len(order)

        def first_use(bucket: Bucket) -> int:
            return min(order.get(piece.owner.param, last) for piece in bucket.pieces)

        return sorted(self.host.buckets, key=first_use)

    def refuse_changed(self, works: Iterable[BucketWork]) -> None:
        """Raise an OffloadError if weights were changed that a backward pass has stepped."""
        for work in works:
            for row in work.stepped & work.refreshed:
                self.worker.refuse(
                    OffloadError(
                        f"{work.bucket.pieces[row].owner.name} was changed between the backward "
                        'pass that stepped it, with hide="backward", and step(): load a '
                        "checkpoint, and change weights after step()"
                    )
                )
                self.worker.check()

    def submit(
        self,
        works: Sequence[BucketWork],
        hypers: Sequence[array[float]] | None,
        is_hidden: bool = False,
    ) -> None:
        """Queue a pass; unless it `is_hidden`, wait for its end."""
        works = [work for work in works if work.stepped or work.refreshed]
        self._wait_for_others(works)
        for device in dict.fromkeys(work.bucket.device for work in works):
            self.host.ring.copies_wait(device)
        self._pass_number += 1
        gradients = [each for work in works for each in (work.gradients or {}).values()]
        versions = {gradient: gradient._version for gradient in gradients}
        touched = {piece.owner.param: None for work in works for piece in work.bucket.pieces}
        stepped = {
            work.bucket.pieces[row].owner.param: None for work in works for row in work.stepped
        }
        increment_version([to_local(param) for param in stepped])
        for param in touched:
            self._versions[param] = _version(param)
            self._needed_pass[param] = self._pass_number
        current = Pass(self._pass_number, works, hypers, versions)
        self.worker.submit(partial(self._run, self.host.pipeline, current))
        if stepped and self._waits is not None:
            self._waits.restart()
        self._is_hidden = True
        if not is_hidden:
            self.synchronize()

    def _wait_for_others(self, works: Iterable[BucketWork]) -> None:
        """Wait for steps of other optimizers over these parameters."""
        params = {piece.owner.param for work in works for piece in work.bucket.pieces}
        found = {_last_steppers[param]() for param in params if param in _last_steppers}
        for other in found - {self, None}:
            if not other.worker.is_closed:
                other.synchronize()
        for param in params:
            _last_steppers[param] = self._reference

    def _run(self, pipeline: Pipeline, current: Pass) -> None:
        """Run a pass: a job that keeps the stepper, so modules wait even without the optimizer."""
        pipeline.run(current)

    def follow_weights(self, only_changed: bool) -> None:
        """Let float32 weights follow the parameters, all or those that are seen to have changed."""
        rows = [
            self._changed(bucket) if only_changed else frozenset(range(len(bucket.pieces)))
            for bucket in self.host.buckets
        ]
        pairs = zip(self.host.buckets, rows, strict=True)
        works = [BucketWork(bucket, frozenset(), None, changed) for bucket, changed in pairs]
        if any(rows):
            self.submit(works, None)

    def may_hide(self, owners: Iterable[HostParam]) -> bool:
        """Tell whether the next forward pass will wait for the weights of these parameters.

        Raises:
            OffloadError: The last forward pass should have waited, and did not. Nothing is changed.
        """
        if self._waits is None:
            return False
        names = {owner.param: owner.name for owner in owners}
        unseen = self._waits.unseen(names)
        if unseen is not None and self._is_hidden:
            raise OffloadError(
                f"{names[unseen]} has a gradient, but since the last step its module has not run "
                "the hook that waits for the new weights. If code used them that was compiled "
                "before offload was called, this gradient is wrong: drop it with zero_grad(). Call "
                "synchronize() after a step before you use weights without their module, or set "
                "gradients yourself, or step again"
            )
        return unseen is None

    def _wait_for(self, params: Iterable[Tensor] | None, on_host: bool) -> None:
        """Let the device, or the host, wait for new weights of parameters; None stands for all."""
        host = self.host
        if host.pipeline.ended_pass == self._pass_number:
            return
        if params is None:
            self.synchronize()
            return
        began = time.perf_counter()
        for param in params:
            for index in host.buckets_of.get(param, ()):
                number = self._needed_pass.get(param, 0)
                self.worker.wait(partial(host.pipeline.has_sent, index, number))
                if on_host:
                    self._wait_on_host(index)
                else:
                    host.pipeline.wait_for_weights(index)
        host.ring.timings.caller_wait_seconds += time.perf_counter() - began

    def _wait_on_host(self, index: int) -> None:
        """Wait on the host for weights of a bucket; if they do not come, no later call goes on."""
        assert self._waiter is not None
        try:
            self.host.pipeline.wait_on_host(index, self._waiter)
        except OffloadError as error:
            self.worker.refuse(error)
            raise

    def synchronize(self) -> None:
        """Wait until all jobs have ended."""
        began = time.perf_counter()
        self.worker.drain()
        self._is_hidden = False
        self.host.ring.timings.caller_wait_seconds += time.perf_counter() - began

    def wait_for_states(self, of_backward_pass: bool) -> None:
        """Wait until no job changes the states: of the last pass, or also of a backward pass.

        Gradients may go on to arrive.
        """
        if of_backward_pass:
            self.synchronize()
        else:
            number, pipeline = self._pass_number, self.host.pipeline
            self.worker.wait(lambda: pipeline.ended_pass >= number)

    def begin_anew(self) -> None:
        """Forget what is under way, after an error; no job runs."""
        self._is_hidden = False
        if self._waiter is not None:
            self._waiter.recover()
        self.worker.call(partial(self.host.begin_anew, self._pass_number))

    def close(self) -> None:
        """Remove all hooks."""
        if self._waits is not None:
            self._waits.remove()
        if self._waiter is not None:
            self._waiter.close()
        if hasattr(self, "host"):
            self.host.remove()
