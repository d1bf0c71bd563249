"""Step buckets one after the other: copy in, call the kernel, copy out, all at the same time.

The worker's thread runs a pass over the buckets. While the kernel steps a bucket, the gradients of
the next ones arrive, and the weights of earlier ones leave. A pinned ring bounds what is under way:

    device ── to_host ──▶ gradient slots ── kernel ──▶ weight slots ── to_device ──▶ device

Both streams first wait for the event `ready`: the backward pass has made the gradients and has read
the weights. Only this thread uses the ring, so a slot needs no lock: it is free once the event of
its last copy has passed. Device code is torch's device-generic API only.
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
from optgen.offloading.host_rule import MASTER
from optgen.offloading.layout import Bucket, Piece
from optgen.offloading.worker import Worker
from optgen.runtime.fused_cpu.kernel import Kernel, thread_pool
from optgen.runtime.tensors.dtensor import to_local


@dataclass
class Timings:
    """The bytes that passes have moved, and the seconds that they took."""

    passes: int = 0
    to_host_bytes: int = 0
    to_device_bytes: int = 0
    kernel_seconds: float = 0.0
    copy_wait_seconds: float = 0.0  # of the worker
    pass_seconds: float = 0.0
    caller_wait_seconds: float = 0.0  # of the thread that trains


@dataclass(frozen=True, eq=False)
class BucketWork:
    """A bucket's part of a pass.

    `gradients` has an entry for each piece, None for a piece that is not stepped. An empty list
    stands for gradients that are on the host already. `refreshed` are the rows of the pieces whose
    float32 weights follow the parameter before the step.
    """

    bucket: Bucket
    gradients: Sequence[Tensor | None]
    refreshed: frozenset[int] = frozenset()

    @property
    def steps(self) -> bool:
        """Tell whether the work has a step."""
        return any(each is not None for each in self.gradients)


@dataclass(frozen=True, eq=False)
class Pass:
    """The work of a step, in order, and the groups' hyperparameters as the kernel takes them."""

    number: int
    works: Sequence[BucketWork]
    hypers: Sequence[array[float]]
    ready: dict[torch.device, torch.Event]
    versions: dict[Tensor, int]  # of the gradients; a copy of a changed one would be wrong


@dataclass(eq=False)
class _Lane:
    """The streams of a device, and the events of its copies, by slot."""

    to_host: torch.Stream
    to_device: torch.Stream
    arrived: list[torch.Event]
    sent: list[torch.Event]
    sending: set[int] = field(default_factory=set)  # weight slots whose copy may be under way


def pinned_slots(count: int, slot_bytes: int) -> list[Tensor]:
    """Return pinned memory: `count` slots of uint8."""
    return [torch.empty(slot_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(count)]


class Pipeline:
    """The ring, the streams and the kernels of all buckets.

    Args:
        worker: Its thread runs the passes.
        kernel: The host's kernel.
        buckets: All buckets; their owners have all states.
        ring: Pinned slots, first those for gradients, then as many for weights.
        threads: The threads of a kernel's call.
        group_count: The number of groups.
        reads_weights: Whether the kernel reads the rounded weights that it overwrites.
    """

    def __init__(
        self,
        worker: Worker,
        kernel: Kernel,
        buckets: Sequence[Bucket],
        ring: Sequence[Tensor],
        threads: int,
        group_count: int,
        reads_weights: bool,
    ) -> None:
        self._reads_weights = reads_weights
        self.worker, self.buckets, self.timings = worker, buckets, Timings()
        self.threads = threads
        self._slot_count = count = len(ring) // 2
        gradient_slots, weight_slots = ring[:count], ring[count:]
        self._gradients = [_views(bucket, gradient_slots) for bucket in buckets]
        self._weights = [_views(bucket, weight_slots) for bucket in buckets]
        self._kernels = [
            BucketKernel(kernel, bucket, weights, gradients, group_count)
            for bucket, weights, gradients in zip(
                buckets, self._weights, self._gradients, strict=True
            )
        ]
        self._lanes = {
            device: _Lane(
                torch.Stream(device=device),
                torch.Stream(device=device),
                [torch.Event(device=device) for _ in range(count)],
                [torch.Event(device=device) for _ in range(count)],
            )
            for device in dict.fromkeys(bucket.device for bucket in buckets)
        }
        self.sent = [torch.Event(device=bucket.device) for bucket in buckets]
        self.sent_pass = [0] * len(buckets)  # the last pass whose weights are on their way
        self.ended_pass = 0  # the last pass whose weights have all arrived
        self._next_weight_slot = 0

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices of the buckets."""
        return tuple(self._lanes)

    def copy_cells(self) -> None:
        """Give pieces the scalar states of their parameters, which a load has changed."""
        for each in self._kernels:
            each.copy_cells()

    def has_sent(self, index: int, number: int) -> bool:
        """Tell whether the weights of a bucket are on their way in this pass, or in a later one."""
        return self.sent_pass[index] >= number

    def run(self, current: Pass) -> None:
        """Run a pass; the worker's thread calls this."""
        began = time.perf_counter()
        for device, event in current.ready.items():
            self._lanes[device].to_host.wait_event(event)
            self._lanes[device].to_device.wait_event(event)
        for work, slot in self._arrivals(current.works):
            if work.refreshed:
                self._follow_weights(work, slot)
                continue
            _check_unchanged(work, current.versions)
            self._step(work, slot, current)
        self._finish(current)
        self.ended_pass = current.number
        self.timings.passes += 1
        self.timings.pass_seconds += time.perf_counter() - began

    def _arrivals(self, works: Sequence[BucketWork]) -> Iterator[tuple[BucketWork, int]]:
        """Yield the copies to the host as they have arrived, each with its slot.

        A bucket whose float32 weights follow the parameter is copied twice: first its weights, then
        its gradients. When the caller asks for the next copy, the last one's slot is free.
        """
        to_copy = deque(part for work in works for part in _parts(work))
        copying: deque[tuple[BucketWork, int]] = deque()
        free = deque(range(self._slot_count))
        while to_copy or copying:
            while to_copy and free:
                work, slot = to_copy.popleft(), free.popleft()
                self._copy_to_host(work, slot)
                copying.append((work, slot))
            work, slot = copying.popleft()
            self.worker.enter("copy to the host", work.bucket.name)
            began = time.perf_counter()
            self._lanes[work.bucket.device].arrived[slot].synchronize()
            self.timings.copy_wait_seconds += time.perf_counter() - began
            yield work, slot
            free.append(slot)

    def _copy_to_host(self, work: BucketWork, slot: int) -> None:
        bucket = work.bucket
        self.worker.enter("start of a copy to the host", bucket.name)
        lane, views = self._lanes[bucket.device], self._gradients[bucket.index][slot]
        with lane.to_host:
            for row, (piece, view) in enumerate(zip(bucket.pieces, views, strict=True)):
                if work.refreshed:
                    source = piece.owner.local if row in work.refreshed else None
                else:
                    source = work.gradients[row]
                if source is not None:
                    view.copy_(piece.of(source), non_blocking=True)
                    source.record_stream(lane.to_host)
                    self.timings.to_host_bytes += view.nbytes
            lane.arrived[slot].record(lane.to_host)

    def _follow_weights(self, work: BucketWork, slot: int) -> None:
        """Take over weights that something else has changed: masters follow by value."""
        views = self._gradients[work.bucket.index][slot]
        for row in work.refreshed:
            piece = work.bucket.pieces[row]
            self.worker.enter("comparison of weights", piece.owner.name)
            follow(master_of(piece), views[row])

    def _step(self, work: BucketWork, slot: int, current: Pass) -> None:
        bucket, lane = work.bucket, self._lanes[work.bucket.device]
        weight_slot = self._free_weight_slot(lane, bucket)
        self.worker.enter("kernel", bucket.name)
        began = time.perf_counter()
        has_gradient = [each is not None for each in work.gradients]
        views = self._weights[bucket.index][weight_slot]
        if self._reads_weights:
            for piece, view in zip(bucket.pieces, views, strict=True):
                view.copy_(master_of(piece))
        self._kernels[bucket.index].run(
            weight_slot, slot, has_gradient, current.hypers, thread_pool(self.threads)
        )
        self.timings.kernel_seconds += time.perf_counter() - began
        self.worker.enter("start of a copy to the device", bucket.name)
        with lane.to_device:
            for piece, view, has in zip(bucket.pieces, views, has_gradient, strict=True):
                if has:
                    piece.of(piece.owner.local.data).copy_(view, non_blocking=True)
                    self.timings.to_device_bytes += view.nbytes
            lane.sent[weight_slot].record(lane.to_device)
            self.sent[bucket.index].record(lane.to_device)
        lane.sending.add(weight_slot)
        self.sent_pass[bucket.index] = current.number
        self.worker.notify()

    def _free_weight_slot(self, lane: _Lane, bucket: Bucket) -> int:
        """Return the slot that was used longest ago, after its copies have ended."""
        slot = self._next_weight_slot
        self._next_weight_slot = (slot + 1) % self._slot_count
        self.worker.enter("copy to the device", bucket.name)
        for each in self._lanes.values():
            if slot in each.sending:
                began = time.perf_counter()
                each.sent[slot].synchronize()
                self.timings.copy_wait_seconds += time.perf_counter() - began
                each.sending.discard(slot)
        return slot

    def _finish(self, current: Pass) -> None:
        """Wait until all weights are on the device, and show the states that the pass has made."""
        self.worker.enter("copies to the device", "the last buckets")
        for lane in self._lanes.values():
            lane.to_device.synchronize()
            lane.sending.clear()
        for work in current.works:
            for piece, gradient in zip(work.bucket.pieces, work.gradients, strict=False):
                if gradient is not None and piece.owner.unmade:
                    piece.owner.show_made()


def _views(bucket: Bucket, slots: Sequence[Tensor]) -> list[list[Tensor]]:
    return [[piece.in_slot(slot) for piece in bucket.pieces] for slot in slots]


def _check_unchanged(work: BucketWork, versions: Mapping[Tensor, int]) -> None:
    """Raise a RuntimeError if a gradient was changed in place while it was copied."""
    for piece, gradient in zip(work.bucket.pieces, work.gradients, strict=True):
        if gradient is not None and gradient._version != versions[gradient]:
            raise RuntimeError(
                f"the gradient of {piece.owner.name} was changed after step(), before its copy had "
                "left: call zero_grad(set_to_none=True), or synchronize() before you change it"
            )


def _parts(work: BucketWork) -> Iterator[BucketWork]:
    """Yield the copies of a bucket: of the weights that are compared, then of the gradients."""
    if work.refreshed:
        yield BucketWork(work.bucket, (), work.refreshed)
    if work.steps:
        yield BucketWork(work.bucket, work.gradients)


def master_of(piece: Piece) -> Tensor:
    """Return the float32 weights of a piece."""
    return piece.of(to_local(piece.owner.states[MASTER]))


def follow(master: Tensor, weights: Tensor) -> None:
    """Overwrite float32 weights where they no longer round to the weights of the parameter."""
    master.copy_(torch.where(master.to(weights.dtype) == weights, master, weights.to(master.dtype)))
