"""Step buckets one after the other, while gradients of the next arrive and weights of others leave.

The worker's thread runs a pass over the buckets. Its copies, which `pinned_ring.py` starts, first
wait for the backward pass: it has made the gradients, and it has read the weights. A gradient that
changes before its copy has ended is an error. `bucket_kernel.py` calls the kernel.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from optgen.offloading.bucket_kernel import BucketKernel
from optgen.offloading.buckets import Bucket, Piece
from optgen.offloading.host_rule import MASTER
from optgen.offloading.pinned_ring import Ring
from optgen.offloading.worker import Worker
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.tensors.dtensor import to_local
from optgen.runtime.torch_private import thread_pool


@dataclass(frozen=True, eq=False)
class BucketWork:
    """A bucket's part of a pass.

    `stepped` are the rows of the pieces that have a gradient. `gradients` are these gradients by
    row, on the device; None for gradients that are on the host already. `refreshed` are the rows
    whose float32 weights follow the parameter before the step.
    """

    bucket: Bucket
    stepped: frozenset[int]
    gradients: Mapping[int, Tensor] | None = None
    refreshed: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Pass:
    """The work of a step, in order.

    `hypers` are the groups' hyperparameters as the kernel takes them. They are None if the buckets
    have been stepped, and only their weights are to be sent. `versions` are those of gradients:
    the copy of a gradient that has changed since would be wrong.
    """

    number: int
    works: Sequence[BucketWork]
    hypers: Sequence[array[float]] | None = None
    versions: Mapping[Tensor, int] = field(default_factory=dict)


Rows = Sequence[tuple[Bucket, Sequence[int]]]
"""Buckets, each with some of its rows."""


class Pipeline:
    """The kernels of all buckets, and the passes over them.

    Args:
        worker: Its thread runs the passes.
        ring: The slots of the buckets.
        kernel: The host's kernel.
        buckets: All buckets; their owners have all states.
        stored: Each bucket's pieces of gradients that are kept on the host; [] for none.
        threads: The threads of a kernel's call.
        group_count: The number of groups.
        reads_weights: Whether the kernel reads the rounded weights that it overwrites.
    """

    def __init__(
        self,
        worker: Worker,
        ring: Ring,
        kernel: Kernel,
        buckets: Sequence[Bucket],
        stored: Sequence[Sequence[Tensor]],
        threads: int,
        group_count: int,
        reads_weights: bool,
    ) -> None:
        self.worker, self.ring, self.buckets = worker, ring, buckets
        self._threads, self._reads_weights = threads, reads_weights
        self._kernels = []
        for bucket, weights, gradients in zip(buckets, ring.weights, ring.gradients, strict=True):
            places = [*gradients, stored[bucket.index]] if stored else gradients
            self._kernels.append(BucketKernel(kernel, bucket, weights, places, group_count))
        self._sent = [torch.Event(device=bucket.device) for bucket in buckets]
        self._sent_pass = [0] * len(buckets)  # the last pass whose weights are on their way
        self.ended_pass = 0  # the last pass whose weights have all arrived

    def copy_cells(self) -> None:
        """Give pieces the scalar states of their parameters, which someone may have changed."""
        for each in self._kernels:
            each.copy_cells()

    def has_sent(self, index: int, number: int) -> bool:
        """Tell whether the weights of a bucket are on their way in this pass, or in a later one."""
        return max(self._sent_pass[index], self.ended_pass) >= number

    def wait_for_weights(self, index: int) -> None:
        """Let the current stream of a bucket's device wait for weights that are on their way."""
        device = self.buckets[index].device
        self._sent[index].wait(torch.accelerator.current_stream(device))

    def wait_on_host(self, index: int, waiter: Worker) -> None:
        """Wait on the host for weights of a bucket that are on their way.

        Raises:
            OffloadError: They do not arrive within the waiter's time limit.
        """
        waiter.wait_for(
            self._sent[index], "copy of weights to the device", self.buckets[index].name
        )

    def run(self, current: Pass) -> None:
        """Run a pass; the worker's thread calls this."""
        began = time.perf_counter()
        if current.hypers is not None:
            self.copy_cells()
        for work in current.works:
            if work.refreshed:
                self._follow_weights(work)
        for work, place in self._arrivals([work for work in current.works if work.stepped]):
            self._check_unchanged(work, current.versions)
            slot = self.ring.weight_slot(work.bucket)
            if current.hypers is None:
                self._round_weights(work, slot)
            else:
                self.step(work, slot, place, current.hypers)
            self.ring.send(work.bucket, slot, sorted(work.stepped), self._sent[work.bucket.index])
            self._sent_pass[work.bucket.index] = current.number
            self.worker.notify()
        self.ring.wait_all_sent()
        for work in current.works:
            self.show_made(work)
        self.ended_pass = current.number
        self.ring.timings.passes += 1
        self.ring.timings.pass_seconds += time.perf_counter() - began

    def _arrivals(self, works: Sequence[BucketWork]) -> Iterator[tuple[BucketWork, int]]:
        """Yield buckets whose gradients are on the host, each with their place.

        When the caller asks for the next bucket, the last one's slot is free.
        """
        waiting, copying = deque(works), deque[tuple[BucketWork, int]]()
        while waiting or copying:
            while waiting and waiting[0].gradients is not None and self.ring.free:
                work, slot = waiting.popleft(), self.ring.free.popleft()
                assert work.gradients is not None
                self.worker.enter("start of a copy to the host", work.bucket.name)
                self.ring.receive(work.bucket, slot, work.gradients.items())
                copying.append((work, slot))
            if copying:
                work, slot = copying.popleft()
                self.ring.wait_received(work.bucket, slot)
                yield work, slot
                self.ring.free.append(slot)
            else:
                yield waiting.popleft(), -1  # the last place is that of stored gradients

    def step(self, work: BucketWork, slot: int, place: int, hypers: Sequence[array[float]]) -> None:
        """Step a bucket with the gradients of a place; write its weights into a slot."""
        bucket = work.bucket
        self.worker.enter("kernel", bucket.name)
        if self._reads_weights:
            self._round_weights(work, slot)
        began = time.perf_counter()
        self._kernels[bucket.index].run(
            slot, place, work.stepped, hypers, thread_pool(self._threads)
        )
        self.ring.timings.kernel_seconds += time.perf_counter() - began

    def _round_weights(self, work: BucketWork, slot: int) -> None:
        """Write the rounded float32 weights into a slot."""
        for row in work.stepped:
            self.ring.weights[work.bucket.index][slot][row].copy_(_master(work.bucket.pieces[row]))

    def _follow_weights(self, work: BucketWork) -> None:
        """Take over weights that something else has changed: masters follow by value."""
        views = self.ring.fetch_weights(work.bucket, sorted(work.refreshed))
        for row in work.refreshed:
            piece = work.bucket.pieces[row]
            self.worker.enter("comparison of weights", piece.owner.name)
            master, weights = _master(piece), views[row]
            is_same = master.to(weights.dtype) == weights
            master.copy_(torch.where(is_same, master, weights.to(master.dtype)))

    def fetch_weights(self, rows: Rows, into: Mapping[Tensor, Tensor]) -> None:
        """Copy the device's weights of some rows into tensors on the host, by parameters."""
        for bucket, chosen in rows:
            views = self.ring.fetch_weights(bucket, chosen)
            for row in chosen:
                piece = bucket.pieces[row]
                piece.of(into[piece.owner.param]).copy_(views[row])

    def send_weights(self, rows: Rows, values: Mapping[Tensor, Tensor]) -> None:
        """Copy tensors on the host, by parameters, into the device's weights of some rows."""
        for bucket, chosen in rows:
            slot = self.ring.weight_slot(bucket)
            for row in chosen:
                piece = bucket.pieces[row]
                self.ring.weights[bucket.index][slot][row].copy_(
                    piece.of(values[piece.owner.param])
                )
            self.ring.send(bucket, slot, chosen, self._sent[bucket.index])
        self.ring.wait_all_sent()

    def _check_unchanged(self, work: BucketWork, versions: Mapping[Tensor, int]) -> None:
        """Raise a RuntimeError if a gradient was changed in place while it was copied."""
        for row, gradient in (work.gradients or {}).items():
            if gradient._version != versions[gradient]:
                raise RuntimeError(
                    f"the gradient of {work.bucket.pieces[row].owner.name} was changed after "
                    "step(), before its copy had left: call zero_grad(set_to_none=True), or "
                    "synchronize() before you change it"
                )

    def show_made(self, work: BucketWork) -> None:
        """Show the states that a first step has made."""
        for row in work.stepped:
            owner = work.bucket.pieces[row].owner
            if owner.unmade:
                owner.show_made()


def _master(piece: Piece) -> Tensor:
    """Return the float32 weights of a piece."""
    return piece.of(to_local(piece.owner.states[MASTER]))
