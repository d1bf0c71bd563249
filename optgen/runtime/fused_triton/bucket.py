"""Put the tensors of one device with equal dtypes into a bucket; a launch takes a whole bucket."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import chain
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.fused_triton.graph_memory import GraphMemory
from optgen.runtime.fused_triton.held_matrices import HeldMatrices
from optgen.runtime.fused_triton.interpreter import patched_interpreter
from optgen.runtime.fused_triton.launch_kernel import Launcher
from optgen.runtime.fused_triton.launch_options import Shape, Tile, compiler_options, options
from optgen.runtime.fused_triton.matrix_stacks import MatrixStacks, Places, Stacks, places_of
from optgen.runtime.fused_triton.shard_exchange import Completion, WholeStates
from optgen.runtime.fused_triton.table import HEADER, Table
from optgen.runtime.fused_triton.tensor_streams import (
    StreamLayout,
    StreamTensors,
    check_devices,
    check_shapes,
    dtypes_and_devices,
    tensors_to_copy,
)
from optgen.runtime.fused_triton.workspace import (
    NO_LINE_SUMS,
    Layout,
    LineSums,
    Programs,
    Workspace,
    WorkspaceSpec,
)
from optgen.runtime.rule import compute_dtype
from optgen.runtime.sharded.driver import Update
from optgen.runtime.tensors.layout import copy_like

Arguments = Callable[[Mapping[str, Any]], tuple[Any, ...]]

_GRADIENTS = 1  # the index of the stream of gradients


class BucketKey(NamedTuple):
    """Properties that all tensors of a bucket share; an absent state has dtype None."""

    device: torch.device
    dtypes: tuple[torch.dtype | None, ...]  # parameter, gradient, states other than scalars
    scalar_dtypes: tuple[torch.dtype, ...]  # step, scalar states
    facts: tuple[bool, ...] = ()  # the answers to the rule's facts


class GroupSubset(NamedTuple):
    """The tensors of one batch in a bucket."""

    batch_index: int  # the hyperparameters of the batch's group have this index too
    indices: tuple[int, ...]  # of the tensors in the batch

    def pick(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Return these tensors of a list that is parallel to the batch's parameters."""
        if not tensors or len(self.indices) == len(tensors):
            return tensors
        if len(self.indices) == 1:
            return (tensors[self.indices[0]],)
        picked: tuple[Tensor, ...] = itemgetter(*self.indices)(tensors)
        return picked


class Bucket:
    """Table, workspace and options that a generated `update` passes to its kernels.

    Args:
        key: What the tensors of the bucket share.
        subsets: The batches' tensors that belong to the bucket.
        state_shapes: The shapes of the states that are not scalars, by key.
        streams: The tensors of every stream, in the order of the table.
        fresh: A flag per tensor for each state that the rule calls `fresh` on.
        hypers: The groups' hyperparameters on the device.
        graph_memory: The memory of a graph capture; None outside one.
        spec: The memory that the kernels share.
        read_only: The streams that kernels only read, except that they may unscale gradients.
        held: What this rank holds of the whole parameters, if the tensors are shards.
    """

    loss_scale: Tensor | None = None
    found_inf: Tensor | None = None
    completion: Completion  # of the sums of shards; only a bucket of shards has it
    _groups: Sequence[Mapping[str, Any]] = ()  # of the current step, one per subset

    def __init__(
        self,
        key: BucketKey,
        subsets: list[GroupSubset],
        state_shapes: Mapping[str, str],
        streams: StreamTensors,
        fresh: list[list[bool]],
        hypers: Tensor,
        graph_memory: GraphMemory | None,
        spec: WorkspaceSpec,
        read_only: frozenset[int] = frozenset((_GRADIENTS,)),
        held: Sequence[HeldMatrices] = (),
    ) -> None:
        self.key, self.subsets, self.hypers = key, subsets, hypers
        self.launch = Launcher(graph_memory)
        self._state_keys, self._read_only = list(state_shapes), read_only
        tensors = streams[: len(key.dtypes)]
        pairs = zip(tensors[2:], state_shapes.values(), strict=True)
        like_params = [stream for stream, shape in pairs if shape == "like"]
        check_shapes([*tensors[:2], *like_params])
        check_devices(tensors, key.device)
        self._row_major = spec.needs_row_major
        self._to_copy = tensors_to_copy(tensors, self._row_major)
        self._layouts = [StreamLayout(stream, self._row_major) for stream in tensors]
        scalars = streams[len(key.dtypes) :]
        self._scalar_dtypes_and_devices = list(map(dtypes_and_devices, scalars))
        self._locals: dict[str, Stacks] = {}
        self._local_places: dict[str, Places] = {}  # those in the table
        self._local_names = spec.locals
        if self._local_names:
            self._stacks = MatrixStacks(streams[0], [len(each.indices) for each in subsets])
        self.compute_type = triton_type(self.compute_dtype)
        self.types = [triton_type(dtype or key.dtypes[0]) for dtype in key.dtypes]
        self.scalar_types = [triton_type(dtype) for dtype in key.scalar_dtypes]
        self._allocate(streams, fresh, graph_memory, spec, held)
        self.whole_states = WholeStates(held, tensors, dict(enumerate(state_shapes.values(), 2)))
        self._to_copy = [each for each in self._to_copy if each not in self.whole_states]

    def _allocate(
        self,
        streams: StreamTensors,
        fresh: list[list[bool]],
        graph_memory: GraphMemory | None,
        spec: WorkspaceSpec,
        held: Sequence[HeldMatrices],
    ) -> None:
        """Divide the tensors into blocks; create the table, scalars and the workspace."""
        is_amd = torch.version.hip is not None
        shapes = list(map(Shape.of, streams[0])) if spec.by_matrix else []
        tiles = list(map(Tile.of, shapes))
        line_sums = spec.row_sums + spec.column_sums
        self.options = options(self.key.dtypes, is_amd, sorted(set(tiles)), line_sums)
        self.prologue_options = {"num_warps": 1} | compiler_options(is_amd)
        block_counts = self._block_counts(streams[0], shapes)
        self._table = Table(
            list(map(Tensor.numel, streams[0])),
            block_counts,
            chain.from_iterable(
                [subset.batch_index] * len(subset.indices) for subset in self.subsets
            ),
            fresh,
            len(streams),
            self.key.device,
            graph_memory,
            num_extra_rows=len(self._local_names),
        )
        self.num_tensors, self.blocks = self._table.num_tensors, self._table.blocks
        self.table, self.tensor_of_block = self._table.memory, self._table.tensor_of_block
        dtype = torch.float64 if spec.in_phases else self.compute_dtype
        size = self.num_tensors, spec.scalars
        self.scalars = torch.empty(size, dtype=dtype, device=self.key.device)
        self._workspace = self._whole_workspace = None
        if not spec.in_phases:
            return
        params = streams[0]
        sizes = [param.shape for param in params]
        layout = Layout(list(map(Shape.of, params)), tiles, block_counts, sizes)
        options_of_both = params[0].dtype, self.key.device, is_amd, graph_memory
        self._workspace = Workspace(spec, layout, *options_of_both, folds_blocks=bool(held))
        if held:
            whole = Layout.of_whole(held, spec.by_matrix)
            folds_groups = any(each.batch_axes for each in held)
            self._whole_workspace = Workspace(
                spec, whole, *options_of_both, folds_blocks=True, folds_groups=folds_groups
            )
            self.completion = Completion(held, self._workspace, self._whole_workspace)

    @property
    def workspace(self) -> Workspace:
        """The memory that the phases of the rule share; only a rule with phases has it."""
        assert self._workspace is not None
        return self._workspace

    @property
    def whole_workspace(self) -> Workspace:
        """The memory of finishes, which see whole matrices even if sweeps see shards."""
        return self._whole_workspace or self.workspace

    @property
    def group(self) -> Mapping[str, Any]:
        """The only param group of the current step, for a rule that reduces over parameters."""
        (group,) = self._groups
        return group

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype that the kernels compute elements in."""
        dtype = self.key.dtypes[0]
        assert dtype is not None  # the first stream is the parameter
        return compute_dtype(dtype)

    def _block_counts(self, params: Sequence[Tensor], shapes: Sequence[Shape]) -> list[int]:
        """Return how many blocks each parameter has; tiles, if phases go by matrices."""
        if shapes:
            return [prod(Tile.of(shape).counts(shape)) for shape in shapes]
        return [-(-param.numel() // self.options["BLOCK"]) for param in params]

    def has(self, state: str) -> bool:
        """Tell whether the parameters of the bucket have the state with this key."""
        return self.key.dtypes[2 + self._state_keys.index(state)] is not None

    def fits(self, streams: StreamTensors) -> bool:
        """Tell whether tensors have the dtypes, sizes and layouts of the bucket's first tensors."""
        scalars = streams[len(self._layouts) :]
        return (
            all(map(StreamLayout.fits, self._layouts, streams))
            and list(map(dtypes_and_devices, scalars)) == self._scalar_dtypes_and_devices
        )

    def allocate_local(self, name: str) -> None:
        """Allocate the tensors in which a sweep stores the operands of a matrix op."""
        dtype = self.key.dtypes[0]
        assert dtype is not None
        self._set_local(name, self._stacks.allocate(dtype, self.key.device))

    def call(
        self, op: Callable[..., list[Tensor]], source: str, target: str, arguments: Arguments
    ) -> None:
        """Apply a matrix op to the stacks that a sweep has stored, batch by batch."""
        dtype = self.key.dtypes[0]
        assert dtype is not None
        stacks: Stacks = []
        for operands, group in zip(self._locals[source], self._groups, strict=True):
            results = op(operands, *arguments(group))
            narrowed = (t if t.dtype.itemsize <= dtype.itemsize else t.to(dtype) for t in results)
            stacks.append([tensor.contiguous() for tensor in narrowed])
        self._set_local(target, stacks)

    def local_type(self, name: str) -> Any:
        """Return the Triton type of the tensors stored under this name for one step."""
        return triton_type(self._locals[name][0][0].dtype)

    def _set_local(self, name: str, stacks: Stacks) -> None:
        self._locals[name], places = stacks, places_of(stacks)
        if places != self._local_places.get(name):
            row = self._stacks.addresses(places)
            self._table.write_extra_addresses(self._local_names.index(name), row)
            self._local_places[name] = places

    def run(
        self,
        update: Callable[[Bucket], None],
        streams: StreamTensors,
        groups: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Update the tensors; streams with another layout than their parameter's are copied.

        `groups` holds the group of each subset.
        """
        with self._table_filled_with(streams, groups), launch_context(self.key.device):
            update(self)

    @property
    def can_repeat(self) -> bool:
        """Tell whether `repeat` can follow: no tensor must be copied."""
        return not self._to_copy

    @property
    def device_bytes(self) -> int:
        """The bytes of the table, the scalars and the workspace."""
        tensors = [self.table, self.tensor_of_block, self.scalars]
        for work in (self._workspace, self._whole_workspace):
            tensors += [] if work is None else work.tensors()
        return sum(tensor.numel() * tensor.itemsize for tensor in tensors)

    @property
    def numels(self) -> Sequence[int]:
        """The number of elements of each tensor."""
        return self._table.numels

    def write_addresses(self, addresses: Mapping[int, array[int]]) -> None:
        """Write the addresses of the tensors of some streams into the table."""
        self._table.write_rows({HEADER + stream: row for stream, row in addresses.items()})

    def fold(
        self,
        kernel: Any,
        results: int,
        maxima: int = 0,
        of_groups: bool = False,
        first: int = 0,
    ) -> None:
        """Fold the partial sums of tensors that have many; `maxima` of the results are no sums.

        `first` is the kernel's first result: with `of_groups`, earlier finishes have stored others.
        """
        work = self.whole_workspace if of_groups else self.workspace
        chunks = work.fold_programs(of_groups)
        if chunks is not None:
            programs = results * chunks.total
            tables = chunks.first_programs, chunks.tensor_indices, work.shapes, work.partials
            self.launch(kernel, programs, *tables, self.num_tensors, **work.fold_options(of_groups))

    def finish_programs(self, lines: LineSums = NO_LINE_SUMS) -> Programs:
        """Return the programs of a finish that combines these sums of rows and columns first."""
        return self.whole_workspace.programs(lines.rows, lines.columns)

    def repeat(self, update: Callable[[Bucket], None], groups: Sequence[Mapping[str, Any]]) -> None:
        """Update tensors like those of an earlier step, whose addresses are in the table."""
        # Matrix ops stand between launches, and the tensors of a gradient scaler may be others.
        is_fixed = self.loss_scale is None and self.found_inf is None and not self._local_names
        with launch_context(self.key.device):
            if is_fixed and self.launch.repeat():
                return
            self._groups = groups
            try:
                if is_fixed:
                    self.launch.record(partial(update, self))
                else:
                    update(self)
            finally:
                self._groups = ()
                self._locals.clear()

    def wide_update(
        self,
        update: Callable[[Bucket], Update | None],
        streams: StreamTensors,
        groups: Sequence[Mapping[str, Any]],
    ) -> Update:
        """Return an update of the tensors that waits where the rule reduces over parameters."""
        with self._table_filled_with(streams, groups):
            with launch_context(self.key.device):
                launches = update(self)
            if launches is not None:  # None: no reduction, so all kernels are launched
                yield from self._with_current_device(launches)

    def _with_current_device(self, launches: Update) -> Update:
        """Yield the requests of launches; make the device current only while kernels launch."""
        answer = None
        while True:
            with launch_context(self.key.device):
                try:
                    request = launches.send(answer)
                except StopIteration:
                    return
            answer = yield request

    @contextmanager
    def _table_filled_with(
        self, streams: StreamTensors, groups: Sequence[Mapping[str, Any]]
    ) -> Iterator[None]:
        """Enter the tensors of a step into the table; write copies back at its end."""
        written_copies = []
        for stream, index in self._to_copy:
            original = streams[stream][index]
            streams[stream][index] = copy = self._copy_of(original, streams[0][index])
            unscales = stream == _GRADIENTS and self.loss_scale is not None
            if unscales or stream not in self._read_only:
                written_copies.append((original, copy))
        self._table.write_addresses(streams)
        self._groups = groups
        try:
            yield
        finally:
            self._groups = ()
            self._locals.clear()
        for original, copy in written_copies:
            original.copy_(copy)

    def _copy_of(self, tensor: Tensor, param: Tensor) -> Tensor:
        if self._row_major:
            return tensor.clone(memory_format=torch.contiguous_format)
        return copy_like(tensor, param)


@cache
def triton_type(dtype: torch.dtype | None) -> Any:
    """Return Triton's type for a dtype of torch."""
    from triton import language

    return getattr(language, str(dtype).removeprefix("torch."))


def launch_context(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a launch: Triton uses the current device, or its interpreter on CPU."""
    return torch.cuda.device(device.index) if device.type == "cuda" else patched_interpreter()
