"""Repeat a step: the C++ reader fetches all tensors anew, and Python touches groups only.

No address is remembered, so none can be out of date: in every step the reader finds the parameters
in the groups' lists, their gradients, and their states in the optimizer's, and takes addresses,
types and layouts from them. What it cannot read this way makes it give up, and so does what may
call for another lowering: a parameter that comes twice, or of a type that its group had none of.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from threading import Lock
from typing import Any, NamedTuple

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import Stepping
from optgen.runtime.batch.dispatch_key import OPTIONS, dtype_or_class
from optgen.runtime.forced import forced
from optgen.runtime.fused_cpu import threads
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.reader.dtensor_specs import first_dtensor, specs_of
from optgen.runtime.fused_cpu.reader.tensor_reader import Reader, reader
from optgen.runtime.fused_cpu.stream_codes import CODES
from optgen.runtime.fused_cpu.table import Table
from optgen.runtime.protocols import Group, Optimized
from optgen.runtime.state.create import Created

_dtype = attrgetter("dtype")

# Which axes of its parameter a state has, as tensor_request.h numbers them.
_AXES = {"like": 0, "row": 1, "col": 2}


class Values(NamedTuple):
    """What a step depends on in a group."""

    options: tuple[Any, ...]
    params: list[Tensor]
    hypers: tuple[Any, ...]


class Getter(NamedTuple):
    """Reads the values of a group, which may lack keys that were not asked for."""

    keys: int  # how many the group has: with one more it may have an option more
    items: Callable[[Group], tuple[Any, ...]]
    options: int  # how many of the items are options; the parameters follow

    @classmethod
    def of(cls, kernel: Kernel, group: Group) -> "Getter":
        """The one for groups with the keys of this one."""
        options = [key for key in OPTIONS if key in group]
        hypers = [key for key in kernel.rule.hypers if key in group]
        return cls(len(group), _items_of([*options, "params", *hypers]), len(options))

    def values(self, group: Group) -> Values:
        """The values, or a KeyError where a key is gone."""
        items, first = self.items(group), self.options
        return Values(items[:first], items[first], items[first + 1 :])


def _items_of(keys: list[str]) -> Callable[[Group], tuple[Any, ...]]:
    """What reads these keys, by one call where there are several."""
    first, *others = keys
    return itemgetter(first, *others) if others else lambda group: (group[first],)


class CachedDenseStep:
    """What a step that was taken through the kernel leaves for the next one."""

    def __init__(self, kernel: Kernel, found: Reader, groups: list[Group], stepped: set[int]):
        self.forced = forced()  # another wish may call for another lowering
        self._kernel, self._cached_step = kernel, found.repeat
        self._busy = Lock()  # all of what follows is scratch of one step
        self._getters = [Getter.of(kernel, group) for group in groups]
        pairs = zip(self._getters, groups, strict=True)
        self._values = [getter.values(group)._replace(params=[]) for getter, group in pairs]
        self._constant = [all(map(is_constant, values.hypers)) for values in self._values]
        self._table = Table(kernel, sum(len(group["params"]) for group in groups), len(groups))
        self._needed = array("Q")
        for group in groups:
            self._needed.extend(kernel.needed_by_shape(group) if id(group) in stepped else (0, 0))
        self._allowed = array("Q", map(_types_in, groups))
        self._lists = array("q", bytes(8 * len(groups)))
        self._order = array("q")
        self._table.hypers = [kernel.row(kernel.rule.values(group)) for group in groups]
        self._table.set_hypers()
        self._inquiry = found.inquiry(kernel, self._table)
        self._request = self._inquiry.request
        self._complete()

    @classmethod
    def of(
        cls, kernel: Kernel, optimizer: Optimized, stepped: set[int] | None
    ) -> "CachedDenseStep | None":
        """What steps of all groups of these identities, and of no others, need to be repeated."""
        found = reader()
        if found is None or stepped is None or kernel.calls:
            return None
        dtensor = first_dtensor(optimizer.param_groups)
        if dtensor is not None and not (kernel.rule.elementwise and found.learn(dtensor)):
            return None
        if not all(type(group["params"]) is list for group in optimizer.param_groups):
            return None
        repeat = cls(kernel, found, optimizer.param_groups, stepped)
        if dtensor is not None:
            repeat._expect(specs_of(optimizer, kernel.keys))
        return repeat

    def _expect(self, specs: list[list[Any]]) -> None:
        """Have the reader take tensors that are shared like these, stream by stream, and no others.

        They are kept: a spec made later could stand where one of these stood.
        """
        self._specs = specs
        self._expected = array("q", [(s and id(s)) or 0 for column in specs for s in column])
        self._request.specs = self._expected.buffer_info()[0]

    def begin(self, optimizer: Optimized, created: list[Created]) -> bool:
        """Run for the first time, with states just created that the rule asks `fresh` of."""
        if not self._note_order(optimizer.param_groups, optimizer.state):
            return False
        fresh, keys = self._table.fresh, self._kernel.rule.fresh
        entries = zip(map(id, optimizer.state.values()), self._order, strict=True)
        places = dict(entries) if created else {}
        for values, key in created:
            fresh[places[id(values)]] |= 1 << keys.index(key)
        try:
            return self.run(optimizer)
        finally:
            fresh[:] = array("B", bytes(len(fresh)))

    def run(self, optimizer: Optimized) -> bool:
        """Take a step, or do nothing and return False if it needs another look."""
        if not self._busy.acquire(blocking=False):
            return False  # another thread is at it
        try:
            return self._run(optimizer)
        finally:
            self._busy.release()

    def _run(self, optimizer: Optimized) -> bool:
        groups = optimizer.param_groups
        if len(groups) != len(self._values) or not self._take_groups(groups):
            return False
        self._table.set_scale(optimizer)
        current = threads.current()
        request, state = self._request, optimizer.state
        request.state, request.threads = id(state), ctypes.addressof(current)
        if self._cached_step(self._inquiry.address):
            return True
        return self._note_order(groups, state) and bool(self._cached_step(self._inquiry.address))

    def _take_groups(self, groups: list[Group]) -> bool:
        """Bring the hyperparameters up to date; False if another lowering might be due."""
        changed = False
        for index, (group, getter) in enumerate(zip(groups, self._getters, strict=True)):
            if len(group) != getter.keys:
                return False
            try:
                values = getter.values(group)
            except KeyError:
                return False
            known = self._values[index]
            if not all(map(is_, values.options, known.options)) or type(values.params) is not list:
                return False
            if not (self._constant[index] and all(map(is_, values.hypers, known.hypers))):
                if not self._take_hypers(index, group, values):
                    return False
                changed = True
            self._lists[index] = id(values.params)
        if changed:
            self._table.set_hypers()
        return True

    def _take_hypers(self, index: int, group: Group, values: Values) -> bool:
        # A learning rate that becomes a tensor may have to be computed with in its own type.
        known = self._values[index].hypers
        if list(map(dtype_or_class, values.hypers)) != list(map(dtype_or_class, known)):
            return False
        self._table.hypers[index] = self._kernel.row(self._kernel.rule.values(group))
        if any(self._needed[2 * index : 2 * index + 2]):
            needed = self._kernel.needed_by_shape(group)
            self._needed[2 * index : 2 * index + 2] = array("Q", needed)
        self._values[index] = values._replace(params=[])  # no parameter is kept alive
        self._constant[index] = all(map(is_constant, values.hypers))
        return True

    def _note_order(self, groups: list[Group], state: dict[Any, Any]) -> bool:
        """Note the parameters, and to which of them each entry of the optimizer's state belongs.

        False if one of them comes twice, or if they are more or fewer than they were.
        """
        params = array("q", map(id, chain.from_iterable(group["params"] for group in groups)))
        count, owners = len(params), array("q", map(id, state))
        if count != len(self._inquiry.params) or len(set(params)) < count:
            return False
        self._inquiry.params[:] = params
        self._order = array("q", range(count))
        if owners.tobytes() != params.tobytes():
            places = dict(zip(params, self._order, strict=True))
            self._order = array("q", [places.get(owner, -1) for owner in owners])
        self._request.order = self._order.buffer_info()[0]
        self._request.entries = len(self._order)
        return True

    def _complete(self) -> None:
        """Say where the tensors are, and which of them the rule needs."""
        request, keys = self._request, self._kernel.keys
        self._keys = array("q", map(id, keys))
        axes = (_AXES[state.shape] for state in self._kernel.like)
        self._axes = array("B", [_AXES["like"]] * 2) + array("B", axes)
        self._names = (ctypes.c_char_p * len(keys))(*(key.encode() for key in keys))
        arrays = {
            "lists": self._lists,
            "needed": self._needed,
            "allowed": self._allowed,
            "keys": self._keys,
            "axes": self._axes,
        }
        for name, memory in arrays.items():
            setattr(request, name, memory.buffer_info()[0])
        request.groups, request.names = len(self._lists), self._names
        request.scalars = len(keys) - self._kernel.streams
        request.counted = self._kernel.rule.step is not None
        request.by_matrix = self._kernel.by_matrix
        request.shape = self._table.struct.shape


def _types_in(group: Group) -> int:
    """The types of a group's parameters, a set bit each: with a tensor lr the others may not do."""
    dtypes = set(map(_dtype, group["params"]))
    return sum(1 << code for dtype, code in CODES.items() if dtype in dtypes)


def is_constant(value: Any) -> bool:
    """Tell whether the same object means the same number: a tensor or a list can be written to."""
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return value is None or isinstance(value, (bool, int, float, str))


def whole_groups(optimizer: Stepping, batches: Sequence[Batch]) -> set[int] | None:
    """Return the identities of the groups that were stepped; None if only a part of one was.

    Parts that differ in their shape predicates only are a whole again: the kernel asks for these.
    """
    taken = {id(batch.group) for batch in batches}
    whole = {id(group) for group in optimizer.param_groups} & taken
    for group in optimizer.param_groups:
        batch = optimizer._context.batches.get(id(group))
        parts = {id(part.group) for part in batch.parts} if batch else set()
        if batch and parts and parts <= taken:
            keys = {part.dispatch_key._replace(facts=()) for part in batch.parts}
            if len(keys) == 1:
                whole.add(id(group))
                taken -= parts
    return whole if taken <= whole else None
