"""The pinned ring between a device and the host, and the streams that copy.

    device ── to_host ──▶ gradient slots ── kernel ──▶ weight slots ── to_device ──▶ device

A slot holds a bucket. A gradient slot is free when it is in `free`: whoever starts a copy takes it
there, and the worker puts it back when it has read it. Weight slots are used in turns by the worker
alone: one is free when the event of its last copy has passed. Device code is torch's device-generic
API only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from optgen.offloading.buckets import Bucket
from optgen.offloading.worker import Worker


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


@dataclass(eq=False)
class _Lane:
    """The streams of a device, and the events of its copies, by slot."""

    to_host: torch.Stream
    to_device: torch.Stream
    ready: torch.Event
    received: list[torch.Event]
    sent: list[torch.Event]
    sending: dict[int, Bucket] = field(default_factory=dict)
    """The weight slots whose copies may be under way, in the order of the copies."""


def pinned_slots(count: int, slot_bytes: int) -> list[Tensor]:
    """Return pinned memory: `count` slots of uint8.

    Raises:
        MemoryError: The host cannot pin so much.
    """
    try:
        return [torch.empty(slot_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
    except RuntimeError as error:
        raise MemoryError(
            f"the host cannot pin {count * slot_bytes:,} bytes, which are {count} slots (half of "
            f"them for each direction) of {slot_bytes:,} bytes: pass a smaller slots= or "
            "bucket_bytes="
        ) from error


class Ring:
    """Slots, and the copies between them and the devices of buckets.

    Args:
        worker: Its thread waits for copies.
        buckets: All buckets.
        slots: Pinned memory, first for gradients, then as many slots for weights.
    """

    def __init__(self, worker: Worker, buckets: Sequence[Bucket], slots: Sequence[Tensor]) -> None:
        self.timings, self._worker = Timings(), worker
        self._count = count = len(slots) // 2
        self.slot_bytes = slots[0].nbytes
        self.free = deque(range(count))  # gradient slots
        self.gradients = [_views(bucket, slots[:count]) for bucket in buckets]
        self.weights = [_views(bucket, slots[count:]) for bucket in buckets]
        self._next_weight_slot = 0
        self.lanes = {
            device: _Lane(
                torch.Stream(device=device),
                torch.Stream(device=device),
                torch.Event(device=device),
                [torch.Event(device=device) for _ in range(count)],
                [torch.Event(device=device) for _ in range(count)],
            )
            for device in dict.fromkeys(bucket.device for bucket in buckets)
        }

    def empty(self) -> None:
        """Wait for copies to end, and make all slots free; the worker's thread calls this."""
        for device, lane in self.lanes.items():
            self._worker.enter("end of copies after an error", str(device))
            lane.to_host.synchronize()
            lane.to_device.synchronize()
            lane.sending.clear()
        self.free.clear()
        self.free.extend(range(self._count))

    def copies_wait(self, device: torch.device) -> None:
        """Let copies from and to a device wait for its current stream."""
        lane = self.lanes[device]
        lane.ready.record(torch.accelerator.current_stream(device))
        lane.to_host.wait_event(lane.ready)
        lane.to_device.wait_event(lane.ready)

    def receive(self, bucket: Bucket, slot: int, gradients: Iterable[tuple[int, Tensor]]) -> None:
        """Start copies of gradients into a slot; each comes with its row in the bucket."""
        lane, views = self.lanes[bucket.device], self.gradients[bucket.index][slot]
        with lane.to_host:
            for row, gradient in gradients:
                views[row].copy_(bucket.pieces[row].of(gradient), non_blocking=True)
                gradient.record_stream(lane.to_host)  # it may be freed before the copy has run
                self.timings.to_host_bytes += views[row].nbytes
            lane.received[slot].record(lane.to_host)

    def wait_received(self, bucket: Bucket, slot: int) -> None:
        """Wait until the copies into a gradient slot have ended."""
        self._worker.enter("copy of gradients to the host", bucket.name)
        self._wait(self.lanes[bucket.device].received[slot])

    def weight_slot(self, bucket: Bucket) -> int:
        """Return the weight slot that was used longest ago, after its copies have ended."""
        slot = self._next_weight_slot
        self._next_weight_slot = (slot + 1) % self._count
        self._worker.enter("copy of weights to the device", bucket.name)
        for lane in self.lanes.values():
            if slot in lane.sending:
                self._wait(lane.sent[slot])
                del lane.sending[slot]
        return slot

    def fetch_weights(self, bucket: Bucket, rows: Iterable[int]) -> list[Tensor]:
        """Copy the weights of some rows to the host; return views of all rows."""
        slot = self.weight_slot(bucket)
        lane, views = self.lanes[bucket.device], self.weights[bucket.index][slot]
        self._worker.enter("copy of weights to the host", bucket.name)
        with lane.to_host:
            for row in rows:
                piece = bucket.pieces[row]
                views[row].copy_(piece.of(piece.owner.local), non_blocking=True)
            lane.sent[slot].record(lane.to_host)
        self._wait(lane.sent[slot])
        return views

    def send(self, bucket: Bucket, slot: int, rows: Iterable[int], sent: torch.Event) -> None:
        """Start copies of weights to the device; record an event behind them."""
        self._worker.enter("start of a copy to the device", bucket.name)
        lane, views = self.lanes[bucket.device], self.weights[bucket.index][slot]
        with lane.to_device:
            for row in rows:
                piece = bucket.pieces[row]
                # `data`: autograd's version counter was advanced when the step began.
                piece.of(piece.owner.local.data).copy_(views[row], non_blocking=True)
                self.timings.to_device_bytes += views[row].nbytes
            lane.sent[slot].record(lane.to_device)
            sent.record(lane.to_device)
        lane.sending[slot] = bucket

    def wait_all_sent(self) -> None:
        """Wait until all weights are on their devices."""
        for lane in self.lanes.values():
            for slot, bucket in lane.sending.items():
                self._worker.enter("copy of weights to the device", bucket.name)
                self._wait(lane.sent[slot])
            lane.sending.clear()

    def _wait(self, event: torch.Event) -> None:
        began = time.perf_counter()
        event.synchronize()
        self.timings.copy_wait_seconds += time.perf_counter() - began


def _views(bucket: Bucket, slots: Sequence[Tensor]) -> list[list[Tensor]]:
    return [[piece.in_slot(slot) for piece in bucket.pieces] for slot in slots]
