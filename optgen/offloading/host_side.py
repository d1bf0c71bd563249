"""Put together what steps on the host: buckets, the ring, kernels, and gradients that are kept.

`pinned_ring.py` has the streams and the copies, and `bucket_kernel.py` the kernel's call.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.offloading.bucket_pipeline import BucketWork, Pipeline
from optgen.offloading.buckets import HostParam, divide
from optgen.offloading.checkpoint import LoadedSum
from optgen.offloading.gradient_hooks import Collector, Load
from optgen.offloading.gradient_sums import GradientSums
from optgen.offloading.host_rule import OffloadRule
from optgen.offloading.options import Options
from optgen.offloading.pinned_ring import Ring
from optgen.offloading.worker import Worker
from optgen.runtime.fused_cpu.kernel_loader import load_kernel
from optgen.runtime.tensors.dtensor import to_local
from optgen.runtime.toolchain.dtype_variants import bits_of_dtypes

Group = dict[str, Any]


class HostSide:
    """The machinery for a set of parameters; another set needs another one.

    Args:
        worker: The thread that steps.
        slots: The pinned memory.
        rule: The classes of the optimizer.
        options: Its choices.
        owners: The parameters on the host, with all their states.
        group_count: The number of groups.
        earlier: What stepped another set of parameters: the sums of gradients go on, and its passes
            count.
    """

    def __init__(
        self,
        worker: Worker,
        slots: Sequence[Tensor],
        rule: OffloadRule,
        options: Options,
        owners: Mapping[Tensor, HostParam],
        group_count: int,
        earlier: HostSide | None = None,
    ) -> None:
        public_rule, self._options = rule.public.rule, options
        may_split = public_rule.elementwise and not (
            public_rule.draws or public_rule.quantized_states
        )
        self.buckets = divide(owners.values(), options.bucket_bytes, may_split)
        self.ring = Ring(worker, self.buckets, slots)
        dtypes = {owner.local.dtype for owner in owners.values()}
        kernel = load_kernel(rule.host, bits_of_dtypes({*dtypes, torch.float32}))
        self.sums: GradientSums | None = None
        if options.stores_gradients:
            wants_norm = options.max_norm is not None
            self.sums = GradientSums(
                self.buckets,
                options.stored_dtype,
                wants_norm,
                options.threads,
                earlier.sums if earlier else None,
            )
        self.pipeline = Pipeline(
            worker,
            self.ring,
            kernel,
            self.buckets,
            self.sums.pieces if self.sums else [],
            options.threads,
            group_count,
            rule.host_reads_weights,
        )
        if earlier is not None:
            self.pipeline.ended_pass = earlier.pipeline.ended_pass
        self.buckets_of: dict[Tensor, list[int]] = {}
        for bucket in self.buckets:
            for piece in bucket.pieces:
                self.buckets_of.setdefault(piece.owner.param, []).append(bucket.index)
        self.collector: Collector | None = None
        self._hypers: Sequence[array[float]] = ()  # of steps during the backward pass
        if options.gradients == "leave":
            self.collector = Collector(
                worker, self.ring, self.buckets, owners, options.gradient_limit, self._use
            )
            if earlier is not None and earlier.collector is not None:
                self.collector.go_on(earlier.collector.counts)
                if self.sums is not None:
                    self.sums.square(self.collector.counts)

    @property
    def gradient_counts(self) -> Mapping[Tensor, int]:
        """The numbers of gradients that parameters have had taken since the last step."""
        return self.collector.counts if self.collector is not None else {}

    @property
    def has_hypers(self) -> bool:
        """Tell whether `set_hypers` has been called."""
        return bool(self._hypers)

    def set_hypers(self, hypers: Sequence[array[float]]) -> None:
        """Begin a backward pass that takes steps, with these hyperparameters."""
        self.pipeline.copy_cells()
        self._hypers = hypers

    def _use(self, load: Load) -> None:
        """Add gradients that have arrived to those on the host, or step them at once."""
        bucket = load.bucket
        if self.sums is not None:
            for row, begins in load.begins.items():
                gradient = self.ring.gradients[bucket.index][load.slot][row]
                self.sums.add(bucket, row, gradient, begins)
            return
        # The weights are sent after the backward pass, which may still read the present ones.
        work = BucketWork(bucket, frozenset(load.begins))
        self.pipeline.step(work, self.ring.weight_slot(bucket), load.slot, self._hypers)
        self.pipeline.show_made(work)

    def begin_anew(self, number: int) -> None:
        """Forget what is under way: pass `number` counts as ended.

        The worker's thread calls this.
        """
        self.pipeline.ended_pass = number
        if self.collector is not None:
            self.collector.abandon()
        self.ring.empty()

    def go_on(self, sums: Mapping[Tensor, LoadedSum]) -> None:
        """Let the gradients since the last step be those sums, of parameters on the host."""
        assert self.sums is not None
        assert self.collector is not None
        self.sums.load({param: to_local(each.total) for param, each in sums.items()})
        self.collector.go_on({param: each.addends for param, each in sums.items()})

    def squares(self, params: Container[Tensor]) -> dict[Tensor, float]:
        """Return the squares of norms of the gradients of these parameters that are on the host."""
        return self.sums.squares(params) if self.sums else {}

    def remove(self) -> None:
        """Remove the hooks of parameters."""
        if self.collector is not None:
            self.collector.remove()
