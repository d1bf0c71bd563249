"""Read a step again: groups in Python, and their tensors in C++.

A cached step of any backend begins here. No address is remembered, so no address can be out of
date. In every step the reader finds the parameters in the groups' lists, then their gradients, and
their states in the optimizer's state. It reads addresses, dtypes and layouts from these tensors.
The reader gives up if it cannot read a tensor, or if the step may need another lowering: for
example if a parameter is listed twice, or has a dtype that no parameter of its group had before.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from optgen.contract.states import VIEW
from optgen.runtime.batch.batch import OPTIONS, dtype_or_class
from optgen.runtime.reader.streams import RuleStreams
from optgen.runtime.reader.tensor_reader import Answer, Reader, RequestBuffers
from optgen.runtime.rule import Group, OptimizerLike, Rule
from optgen.runtime.tensors.dtensor import is_dtensor, same_sharding
from optgen.runtime.torch_private import dtensor_spec

_REFUSED = int(Answer.REFUSED)


def can_read(streams: RuleStreams, groups: Sequence[Group]) -> bool:
    """Tell whether the groups' lists and the states of the rule are of kinds that can be read."""
    return streams.can_be_read and all(type(group["params"]) is list for group in groups)


class GroupReader:
    """Reads groups that have the same options and keys as in an earlier step.

    Args:
        rule: The rule of the optimizer.
        groups: The optimizer's groups.
        set_hypers: Called with the index of a group whose hyperparameters have changed. Raises a
            `TypeError` or a `ValueError` for an invalid one.
    """

    def __init__(
        self, rule: Rule, groups: Sequence[Group], set_hypers: Callable[[int, Group], None]
    ) -> None:
        self._set_hypers = set_hypers
        self._getters = [GroupGetter.of(rule, group) for group in groups]
        pairs = zip(self._getters, groups, strict=True)
        self._group_values = [getter.values(group)._replace(params=[]) for getter, group in pairs]
        self._are_constant = [all(map(is_constant, each.hypers)) for each in self._group_values]
        self.list_addresses = array("q", bytes(8 * len(groups)))  # of the lists of parameters
        self._has_untold_change = False  # a hyperparameter changed before a group was refused

    @property
    def has_constant_hypers(self) -> bool:
        """Tell whether no hyperparameter is a tensor or a list, which may change in place."""
        return all(self._are_constant)

    def read(self, groups: Sequence[Group]) -> bool | None:
        """Read the groups; return whether a hyperparameter has changed.

        Return None if the step may need another lowering, or must raise an error. Changes up to
        then are told by a later call.
        """
        if len(groups) != len(self._group_values):
            return None
        for index, (group, getter) in enumerate(zip(groups, self._getters, strict=True)):
            if len(group) != getter.key_count:
                return None
            try:
                values = getter.values(group)
            except KeyError:
                return None
            last = self._group_values[index]
            if not all(map(is_, values.options, last.options)) or type(values.params) is not list:
                return None
            if not (self._are_constant[index] and all(map(is_, values.hypers, last.hypers))):
                if not self._update_hypers(index, group, values):
                    return None
                self._has_untold_change = True
            self.list_addresses[index] = id(values.params)
        changed, self._has_untold_change = self._has_untold_change, False
        return changed

    def _update_hypers(self, index: int, group: Group, values: GroupValues) -> bool:
        """Update a group's hyperparameters; return False if the step must gather its tensors."""
        # If a learning rate has become a tensor, the step may have to compute in its dtype.
        last = self._group_values[index].hypers
        if list(map(dtype_or_class, values.hypers)) != list(map(dtype_or_class, last)):
            return False
        try:
            self._set_hypers(index, group)
        except (TypeError, ValueError):
            return False  # the gathered step raises the error, after its collectives
        self._group_values[index] = values._replace(params=[])  # keeps no parameter alive
        self._are_constant[index] = all(map(is_constant, values.hypers))
        return True


class StepReader:
    """Reads groups, and their tensors in C++.

    Args:
        reader: The C++ reader.
        buffers: The request, whose columns the tensors fill.
        streams: The streams of the columns.
        groups: The optimizer's groups.
        allowed_dtypes: For each group, a bit for each dtype that its parameters may have.
        updated_ids: The identities of the groups that may have gradients.
        set_hypers: As for `GroupReader`.
        by_matrix: Whether parameters must be contiguous.
    """

    def __init__(
        self,
        reader: Reader,
        buffers: RequestBuffers,
        streams: RuleStreams,
        groups: Sequence[Group],
        allowed_dtypes: Sequence[int],
        updated_ids: set[int],
        set_hypers: Callable[[int, Group], None],
        by_matrix: bool = False,
    ) -> None:
        self._streams, self._read_step = streams, reader.read_step
        self._needed_streams = array("Q")
        for group in groups:
            needed = streams.needed_by_shape(group) if id(group) in updated_ids else (0, 0)
            self._needed_streams.extend(needed)

        def set_hypers_and_streams(index: int, group: Group) -> None:
            set_hypers(index, group)
            if any(self._needed_streams[2 * index : 2 * index + 2]):
                needed = array("Q", streams.needed_by_shape(group))
                self._needed_streams[2 * index : 2 * index + 2] = needed

        self._groups = GroupReader(streams.rule, groups, set_hypers_and_streams)
        self.read_groups = self._groups.read
        self._allowed_dtypes = array("Q", allowed_dtypes)
        views = [streams.rule.view(group) for group in groups]
        self._views = [None if view is None else array("q", [len(view), *view]) for view in views]
        self._param_of_entry = array("q")  # index, for each entry of the optimizer's state
        self._buffers, self.request = buffers, buffers.request
        self._fill_request(by_matrix)

    def read_tensors(self, groups: Sequence[Group], state: dict[Any, Any], takes_step: bool) -> int:
        """Let the reader read the tensors, and take the step if asked to; return its `Answer`."""
        self.request.state, address = id(state), self._buffers.address
        answer: int = self._read_step(address, takes_step)
        if answer == _REFUSED and self.store_entries(groups, state):
            answer = self._read_step(address, takes_step)
        return answer

    def store_entries(self, groups: Sequence[Group], state: dict[Any, Any]) -> bool:
        """Store the parameters, and the index of the parameter of each entry of the state.

        Return False if a parameter is listed twice, or if the number of parameters has changed.
        """
        params = array("q", map(id, chain.from_iterable(group["params"] for group in groups)))
        count, state_keys = len(params), array("q", map(id, state))
        if count != len(self._buffers.params) or len(set(params)) < count:
            return False
        self._buffers.params[:] = params
        self._param_of_entry = array("q", range(count))
        if state_keys.tobytes() != params.tobytes():
            index_by_id = dict(zip(params, self._param_of_entry, strict=True))
            indices = [index_by_id.get(key, -1) for key in state_keys]
            self._param_of_entry = array("q", indices)
        self.request.tensor_of_entry = self._param_of_entry.buffer_info()[0]
        self.request.entry_count = len(self._param_of_entry)
        return True

    def param_indices(self, state: dict[Any, Any]) -> dict[int, int]:
        """Return the index of each parameter, by the identity of its values in the state."""
        return dict(zip(map(id, state.values()), self._param_of_entry, strict=True))

    def _fill_request(self, by_matrix: bool) -> None:
        """Fill the reader's request: where the tensors are, and which tensors the rule needs."""
        request, streams, keys = self.request, self._streams, self._streams.keys
        self._keys = array("q", map(id, keys))
        if any(self._views):
            view_addresses = (view.buffer_info()[0] if view else 0 for view in self._views)
            self._view_addresses = array("q", view_addresses)
            request.views = self._view_addresses.buffer_info()[0]
        self._key_texts = (ctypes.c_char_p * len(keys))(*(key.encode() for key in keys))
        arrays = {
            "lists": self._groups.list_addresses,
            "needed_streams": self._needed_streams,
            "allowed_dtypes": self._allowed_dtypes,
            "keys": self._keys,
        }
        for name, memory in arrays.items():
            setattr(request, name, memory.buffer_info()[0])
        request.group_count, request.key_texts = len(self._allowed_dtypes), self._key_texts
        group_state_count = len(streams.rule.group_states)
        request.scalar_count = len(keys) - streams.stream_count - group_state_count
        request.by_matrix = by_matrix


class GroupValues(NamedTuple):
    """The values of a group that a step depends on."""

    options: tuple[Any, ...]
    params: list[Tensor]
    hypers: tuple[Any, ...]


class GroupGetter(NamedTuple):
    """Getter of the values of groups that have certain keys."""

    key_count: int  # how many keys the group has; a key that is added may be an option
    get_items: Callable[[Group], tuple[Any, ...]]
    option_count: int  # how many of the items are options; the parameters follow
    has_view: bool  # whether the group has the option `view`

    @classmethod
    def of(cls, rule: Rule, group: Group) -> GroupGetter:
        """Return the getter for groups with the same keys as this group."""
        options = [key for key in (*OPTIONS, VIEW) if key in group]
        hypers = [key for key in rule.hypers if key in group]
        get_items = _items_of([*options, "params", *hypers])
        return cls(len(group), get_items, len(options), VIEW in group)

    def values(self, group: Group) -> GroupValues:
        """Return a group's values.

        Raise a `KeyError` if a key is missing, or if the group has gained or lost its view.
        """
        if (VIEW in group) is not self.has_view:
            raise KeyError(VIEW)
        items, count = self.get_items(group), self.option_count
        return GroupValues(items[:count], items[count], items[count + 1 :])


def _items_of(keys: list[str]) -> Callable[[Group], tuple[Any, ...]]:
    """Return a function that returns a group's values of these keys, also of one key as a tuple."""
    first, *others = keys
    return itemgetter(first, *others) if others else lambda group: (group[first],)


def is_constant(value: Any) -> bool:
    """Tell whether a value is immutable; a tensor or a list is not."""
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return value is None or isinstance(value, (bool, int, float, str))


def first_dtensor(groups: list[dict[str, Any]]) -> Tensor | None:
    """Return the first parameter that is a DTensor; None if there is none."""
    params = list(chain.from_iterable(group["params"] for group in groups))
    classes = set(filter(is_dtensor, set(map(type, params))))
    return next((param for param in params if type(param) in classes), None) if classes else None


def specs_of(optimizer: OptimizerLike, keys: Sequence[str]) -> list[list[Any]]:
    """Return the sharding specs of a step's tensors, by stream and parameter; None if not sharded.

    The streams are the parameters, the gradients, and the states of `keys[2:]`.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    columns: list[list[Any]] = [params, [param.grad for param in params]]
    for key in keys[2:]:
        columns.append([optimizer.state.get(param, {}).get(key) for param in params])
    return [
        [_spec(param, value) for param, value in zip(params, column, strict=True)]
        for column in columns
    ]


def _spec(param: Tensor, value: Any) -> Any:
    """Return the spec of a state or gradient if it is sharded as its parameter is; else None."""
    return dtensor_spec(value) if is_dtensor(type(value)) and same_sharding(param, value) else None
