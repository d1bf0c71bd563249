"""Sort the tensors of a step into buckets, which later steps may use again."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import accumulate, chain, repeat, zip_longest
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch import grad_scaler
from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_triton.bucket import Bucket, BucketKey, GroupSubset
from optgen.runtime.fused_triton.compilation import compile_kernels
from optgen.runtime.fused_triton.graph_memory import GraphMemory
from optgen.runtime.fused_triton.held_matrices import HeldMatrices
from optgen.runtime.fused_triton.sharded_step import update_of_shards
from optgen.runtime.fused_triton.table import Hypers, flatten
from optgen.runtime.fused_triton.tensor_streams import StreamTensors
from optgen.runtime.fused_triton.workspace import WorkspaceSpec
from optgen.runtime.rule import Group, HasLowerings, Rule
from optgen.runtime.sharded.driver import Update
from optgen.runtime.state.scalars import move_scalars_to_param_devices
from optgen.runtime.torch_private import cuda_stream

_dtype = attrgetter("dtype")
_NO_SCALER = nullcontext()

_MAX_KEPT = 4
"""Steps whose buckets are kept for the same streams. Four averaged models can take turns without a
new table, and so can four sets of parameters that have gradients."""
_MAX_ALL_KEPT = 16
"""Steps whose buckets are kept for all streams together."""
_MAX_BYTES = 1 << 26
"""Device memory of all kept buckets but the latest step's. The workspace of a rule that sums rows
and columns takes half a byte per element."""

Streams = tuple[tuple[int, int], ...]
"""Pairs of a CUDA device's index and the address of a stream on it, in the order of devices."""


def workspaces(lowered: HasLowerings) -> Mapping[tuple[bool, ...], WorkspaceSpec]:
    """Return the workspaces of a rule's kernels, by the facts of the tensors."""
    module = importlib.import_module(f"{lowered.lowerings}.fused_triton")
    if hasattr(module, "WORKSPACE"):  # the rule asks for no facts
        return {(): module.WORKSPACE}
    found: Mapping[tuple[bool, ...], WorkspaceSpec] = module.WORKSPACES
    return found


def current_streams(cuda_devices: Sequence[torch.device]) -> Streams:
    """Return the current streams of these devices."""
    return tuple([(device.index, cuda_stream(device)) for device in cuda_devices])


class StepBuckets:
    """Buckets of all tensors of a step; reused while the tensors have the same layouts.

    They are for the streams that are current when they are made: their tables are allocated there.

    Attributes:
        last_writer: The object that has written addresses and hyperparameters last; None after an
            update of batches.
    """

    last_writer: object = None

    def __init__(
        self, optimizer: HasLowerings, batches: list[Batch], is_captured: bool = False
    ) -> None:
        self._rule = rule = optimizer.rule
        self._module = importlib.import_module(f"{optimizer.lowerings}.fused_triton")
        self._specs = workspaces(optimizer)
        # A captured graph reads this memory at every replay.
        self._graph_memory = _graph_memory(batches) if is_captured else None
        self.batches = [] if is_captured else batches  # captured buckets fit no later step
        self._hypers: dict[torch.device, Hypers] = {}
        # Whether the tables say that states are unused: so they do until kernels have used them.
        self.marks_fresh = any(batch.any_fresh for batch in batches)
        subsets: dict[BucketKey, dict[int, list[int]]] = {}
        for batch_index, batch in enumerate(batches):
            _move_scalars(rule, batch)
            for index, key in enumerate(_keys(rule, batch)):
                subsets.setdefault(key, {}).setdefault(batch_index, []).append(index)
        self.buckets = [
            self._bucket(
                key,
                [GroupSubset(index, tuple(indices)) for index, indices in by_batch.items()],
                batches,
            )
            for key, by_batch in subsets.items()
        ]
        devices = {key.device for key in subsets if key.device.type == "cuda"}
        self._cuda_devices = sorted(devices, key=attrgetter("index"))
        self.streams = current_streams(self._cuda_devices)
        self.device_bytes = sum(bucket.device_bytes for bucket in self.buckets)

    def is_for_current_streams(self) -> bool:
        """Tell whether the streams that the buckets were made on are current."""
        return self.streams == current_streams(self._cuda_devices)

    def _bucket(self, key: BucketKey, subsets: list[GroupSubset], batches: list[Batch]) -> Bucket:
        """Make the bucket of the tensors that share a key."""
        rule = self._rule
        hypers = self._hypers.get(key.device)
        if hypers is None:
            num_hypers = len(flatten(batches[0].group, rule))
            hypers = Hypers(len(batches), num_hypers, key.device, self._graph_memory)
            self._hypers[key.device] = hypers
        fresh = [
            [
                batches[subset.batch_index].fresh[name][i]
                for subset in subsets
                for i in subset.indices
            ]
            for name in rule.fresh
        ]
        streamed_states = [state for state in rule.states if state.shape != "scalar"]
        state_shapes = {state.key: str(state.shape) for state in streamed_states}
        # Stream 0 is the parameter, stream 1 the gradient; the states follow.
        unwritten = (i for i, state in enumerate(streamed_states, 2) if not state.written)
        read_only = frozenset((1, *unwritten))
        streams = _streams(rule, subsets, batches)
        spec = self._specs[key.facts]
        arguments = (state_shapes, streams, fresh, hypers.values, self._graph_memory, spec)
        pairs = [(batches[subset.batch_index], i) for subset in subsets for i in subset.indices]
        held = [
            HeldMatrices.of(batch.params[i], batch.seen_params[i].shape, sharding.sharded_axes())
            for batch, i in pairs
            if (sharding := batch.dispatch_key.sharding) is not None
        ]
        return Bucket(key, subsets, *arguments, read_only, held)

    def is_for(self, batches: Sequence[Batch]) -> bool:
        """Tell whether the buckets were made for these batches."""
        return len(batches) == len(self.batches) and all(map(is_, batches, self.batches))

    def fits(self, batches: list[Batch]) -> bool:
        """Tell whether the buckets fit these batches: the same objects, in the same layouts."""
        if self.marks_fresh or not self.is_for(batches):
            return False
        if any(batch.any_fresh for batch in batches):
            return False
        return all(b.fits(_streams(self._rule, b.subsets, batches)) for b in self.buckets)

    def update(self, optimizer: HasLowerings, batches: list[Batch]) -> None:
        """Launch the kernels of every bucket."""
        self.last_writer = None
        self.set_hypers([batch.group for batch in batches])
        for bucket in self.buckets:
            groups = [batches[subset.batch_index].group for subset in bucket.subsets]
            streams = _streams(self._rule, bucket.subsets, batches)
            with _scaler_tensors(bucket, optimizer):
                bucket.run(self._module.update, streams, groups)
        self.finish(optimizer, batches)

    def finish(self, optimizer: HasLowerings, batches: Sequence[Batch]) -> None:
        """Note that kernels have updated the batches."""
        torch.autograd.graph.increment_version(chain.from_iterable(b.members for b in batches))
        # To ask for a skip waits for the device; after a first step, the dispatch asks, too.
        self.marks_fresh = self.marks_fresh and grad_scaler.is_skipped(optimizer)

    def compile(self, optimizer: HasLowerings, batches: Sequence[Batch]) -> None:
        """Compile and load the kernels for CUDA devices, before the first of them is launched.

        Raises:
            Refusal: Triton cannot do so.
        """
        is_sharded = batches[0].dispatch_key.sharding is not None
        update = (
            partial(update_of_shards, self._module.update) if is_sharded else self._module.update
        )
        for bucket in self.buckets:
            groups = [batches[subset.batch_index].group for subset in bucket.subsets]
            if bucket.key.device.type == "cuda":
                with _scaler_tensors(bucket, optimizer):
                    compile_kernels(update, bucket, groups)

    @property
    def needs_shapes(self) -> bool:
        """Tell whether kernels depend on more of a tensor's shape than its number of elements."""
        needs_row_major = any(spec.needs_row_major for spec in self._specs.values())
        return bool(self._rule.facts) or needs_row_major

    @property
    def can_repeat(self) -> bool:
        """Tell whether `repeat` can follow an update."""
        return all(bucket.can_repeat for bucket in self.buckets)

    def repeat(self, optimizer: HasLowerings, groups: Sequence[Group]) -> None:
        """Launch the kernels again; tables and hyperparameters on the devices are up to date.

        `groups` has the group of each batch of the step.
        """
        for bucket in self.buckets:
            bucket_groups = [groups[subset.batch_index] for subset in bucket.subsets]
            with _scaler_tensors(bucket, optimizer):
                bucket.repeat(self._module.update, bucket_groups)

    def wide_updates(self, batch: Batch) -> Iterator[Update]:
        """Yield an update for each bucket, which waits where the rule reduces over parameters.

        The caller must unscale the gradients before it runs the first update.
        """
        for bucket in self.buckets:
            yield self._wide_update(bucket, batch)

    def _wide_update(self, bucket: Bucket, batch: Batch) -> Update:
        self.set_hypers([batch.group])
        streams = _streams(self._rule, bucket.subsets, [batch])
        groups = [batch.group] * len(bucket.subsets)
        yield from bucket.wide_update(self._module.update, streams, groups)
        torch.autograd.graph.increment_version(
            [batch.members[i] for subset in bucket.subsets for i in subset.indices]
        )
        self.marks_fresh = False

    def sharded_updates(self, optimizer: HasLowerings, batches: list[Batch]) -> Iterator[Update]:
        """Yield an update for each bucket of shards, which waits for sums of other ranks."""
        for bucket in self.buckets:
            yield self._sharded_update(bucket, optimizer, batches)

    def _sharded_update(
        self, bucket: Bucket, optimizer: HasLowerings, batches: list[Batch]
    ) -> Update:
        sharding = batches[0].dispatch_key.sharding
        assert sharding is not None
        process_groups = tuple(axis.group for axis in sharding.sharded_axes())
        self.set_hypers([batch.group for batch in batches])
        groups = [batches[subset.batch_index].group for subset in bucket.subsets]
        streams = _streams(self._rule, bucket.subsets, batches)

        parts = bucket.whole_states.replace(streams)

        def launches(bucket: Bucket) -> Update:
            return update_of_shards(self._module.update, bucket, process_groups, parts)

        with _scaler_tensors(bucket, optimizer):
            yield from bucket.wide_update(launches, streams, groups)

    def set_hypers(self, groups: Sequence[Group]) -> None:
        """Bring the hyperparameters of each batch's group to the devices, if they have changed.

        In a capture, the copy of all tables comes before the first other operation.
        """
        if self._graph_memory is not None:
            self._graph_memory.flush()
        values = list(chain.from_iterable(flatten(group, self._rule) for group in groups))
        for hypers in self._hypers.values():
            hypers.set(values)


class KeptBuckets:
    """The buckets of the steps that an optimizer or a function took last, the latest first.

    The tables of buckets are written and read in the order of one stream per device. On another
    stream, nothing would order an upload after the kernels that still read the old rows. The memory
    of a dropped table would be given away there while a kernel reads it. So buckets serve the
    streams that were current when they were made, and no others.
    """

    def __init__(self) -> None:
        self._kept: list[StepBuckets] = []

    def find(self, fits: Callable[[StepBuckets], bool]) -> StepBuckets | None:
        """Return buckets that are for the current streams and fit; None if there are none."""
        for step_buckets in self._kept:
            if step_buckets.is_for_current_streams() and fits(step_buckets):
                if step_buckets is not self._kept[0]:
                    self.add(step_buckets)
                return step_buckets
        return None

    def add(self, step_buckets: StepBuckets) -> None:
        """Keep a step's buckets as the latest, and drop those that are too many or too large."""
        others = [each for each in self._kept if each is not step_buckets]
        of_its_streams = [each for each in others if each.streams == step_buckets.streams]
        dropped = of_its_streams[_MAX_KEPT - 1 :]
        kept = [each for each in others if each not in dropped][: _MAX_ALL_KEPT - 1]
        sums = accumulate(each.device_bytes for each in kept)
        small = [each for each, size in zip(kept, sums, strict=True) if size <= _MAX_BYTES]
        self._kept = [step_buckets, *small]

    def __contains__(self, step_buckets: StepBuckets) -> bool:
        return any(each is step_buckets for each in self._kept)


def _graph_memory(batches: Sequence[Batch]) -> GraphMemory:
    """Return memory for the tables of captured buckets, which have rows of tensors and of blocks.

    A rule with several kinds of finishes makes the programs of some of them during the step.
    """
    params = list(chain.from_iterable(batch.params for batch in batches))
    capacity = 4096 + 512 * len(params) + sum(param.numel() // 64 for param in params)
    sizes = chain.from_iterable(param.shape[-2:] for param in params if param.ndim > 1)
    return GraphMemory(capacity, reserve=1024 + 64 * len(params) + sum(sizes) // 8)


def _scaler_tensors(bucket: Bucket, optimizer: HasLowerings) -> AbstractContextManager[None]:
    """Give a bucket the tensors of a gradient scaler, if there is one, for one update."""
    scaler_tensors = grad_scaler.scaler_tensors_on(bucket.key.device, optimizer)
    return (
        _NO_SCALER
        if not any(each is not None for each in scaler_tensors)
        else _given(bucket, *scaler_tensors)
    )


@contextmanager
def _given(bucket: Bucket, loss_scale: Tensor | None, found_inf: Tensor | None) -> Iterator[None]:
    bucket.loss_scale, bucket.found_inf = loss_scale, found_inf
    try:
        yield
    finally:
        bucket.loss_scale = bucket.found_inf = None


def _tensor_lists(rule: Rule, batch: Batch) -> Iterator[tuple[bool, list[Any]]]:
    """Yield the tensor lists of a batch in a table's order, as pairs (holds scalars, tensors)."""
    yield False, batch.params
    yield False, batch.grads
    for state, tensors in zip(rule.states, batch.states, strict=True):
        if state.shape != "scalar":
            yield False, tensors
    if rule.step is not None:
        yield True, batch.step_counts
    for state, tensors in zip(rule.states, batch.states, strict=True):
        if state.shape == "scalar":
            yield True, tensors


def _keys(rule: Rule, batch: Batch) -> Iterator[BucketKey]:
    """Yield the bucket key of every parameter of a batch."""
    lists = list(_tensor_lists(rule, batch))
    streams = zip_longest(*(map(_dtype, tensors) for is_scalar, tensors in lists if not is_scalar))
    scalars = zip(*(map(_dtype, tensors) for is_scalar, tensors in lists if is_scalar), strict=True)
    devices = (param.device for param in batch.params)
    return map(
        BucketKey, devices, streams, chain(scalars, repeat(())), repeat(batch.dispatch_key.facts)
    )


def _streams(rule: Rule, subsets: Sequence[GroupSubset], batches: list[Batch]) -> StreamTensors:
    """Return the streams of one bucket, in the order of its table."""
    picked = (
        [subset.pick(tensors) for _, tensors in _tensor_lists(rule, batches[subset.batch_index])]
        for subset in subsets
    )
    return [list(chain.from_iterable(lists)) for lists in zip(*picked, strict=True)]


def _move_scalars(rule: Rule, batch: Batch) -> None:
    """Move step counts and scalar states to their parameters' devices."""
    for key, tensors in _scalars(rule, batch):
        if key == "step" and rule.step == "int":
            # The state holds a Python int; `gather.finish` stores the new count there.
            pairs = zip(tensors, batch.params, strict=True)
            tensors[:] = [step.to(param.device) for step, param in pairs]
        elif batch.dicts:  # a function's numbers are lists, which its caller has made on the device
            tensors[:] = move_scalars_to_param_devices(batch.dicts, key, batch.params)


def _scalars(rule: Rule, batch: Batch) -> Iterator[tuple[str, list[Any]]]:
    """Yield the keys and the tensors of the scalars that each parameter has."""
    if rule.step is not None:
        yield "step", batch.step_counts
    for state, tensors in zip(rule.states, batch.states, strict=True):
        # Copies of a group's state, and given numbers, are on the parameters' devices already.
        if state.shape == "scalar" and not (state.of_group or state.step_argument):
            yield state.key, tensors
