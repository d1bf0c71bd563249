"""Count the bytes that offloaded states need, and make the states.

Nothing is allocated before it is known that there is room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from optgen.offloading.buckets import HostParam
from optgen.offloading.options import Options
from optgen.offloading.state_files import StateFiles, padded
from optgen.runtime.rule import Rule
from optgen.runtime.state.create import create_missing, dtype_of, has_codes, state_keys
from optgen.runtime.tensors.dtensor import to_local
from optgen.runtime.tensors.quantized import code_bytes

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


def bytes_by_state(
    rule: Rule, params: Iterable[Tensor], group: Mapping[str, Any]
) -> dict[str, int]:
    """Return the bytes that the states of a group's parameters take on the host, by their keys."""
    totals = dict[str, int]()
    for param in params:
        for key, count in _state_bytes(rule, param, group):
            totals[key] = totals.get(key, 0) + count
    return totals


def needed_bytes(
    rule: Rule, on_host: Iterable[tuple[Mapping[str, Any], Sequence[Tensor]]], options: Options
) -> dict[str, int]:
    """Return the bytes of memory that groups of parameters on the host need, by their purpose."""
    rows = dict[str, int]()
    for group, params in on_host:
        if options.state_dir is None:
            for key, count in bytes_by_state(rule, params, group).items():
                rows[key] = rows.get(key, 0) + count
        else:  # the states of a parameter are made in memory, then moved
            sizes = (sum(bytes_by_state(rule, [each], group).values()) for each in params)
            rows["states of one"] = max(rows.get("states of one", 0), *sizes, 0)
        if options.stores_gradients:
            stored = sum(
                each.numel() * (options.stored_dtype or each.dtype).itemsize for each in params
            )
            rows["gradients"] = rows.get("gradients", 0) + stored
    return rows


def missing_file_bytes(
    rule: Rule, owners: Iterable[HostParam], groups: Sequence[Mapping[str, Any]]
) -> int:
    """Return the bytes that states which are not made yet will take in a file."""
    return sum(
        padded(count)
        for owner in owners
        for key, count in _state_bytes(rule, owner.local, groups[owner.group_index])
        if owner.tensor(key) is None
    )


def _state_bytes(rule: Rule, param: Tensor, group: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the key and the bytes of each state of a parameter, except numbers."""
    keys = set(state_keys(rule, dict(group)))
    for state in rule.states:
        if state.key not in keys or state.shape == "scalar" or not state.suits(param, group):
            continue
        elements = prod(state.shape_for(param, rule.rank(group)))
        if state.is_quantized and has_codes(state, param):
            yield state.key, code_bytes(elements, state.block, state.map)
        else:
            dtype = dtype_of(state, param.dtype) or param.dtype
            yield state.key, elements * dtype.itemsize


def available_bytes() -> int | None:
    """Return the bytes that this process can still allocate on the host; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
        if limit != "max":
            found.append(int(limit) - int(_CGROUP_USED.read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def check_room(states: Mapping[str, int], pinned: int) -> None:
    """Raise a MemoryError with a table of bytes if the host has no room for all of it."""
    available = available_bytes()
    rows = {**states, "pinned ring": pinned}
    needed = sum(rows.values())
    if available is None or needed <= available:
        return
    table = "\n".join(f"  {name:24} {count:>18,} bytes" for name, count in rows.items())
    raise MemoryError(
        f"offload needs {needed:,} bytes on the host, and {available:,} are available:\n{table}\n"
        'Smaller states help: compose the rule with modifiers.state_dtype("bfloat16") or '
        "modifiers.quantized()"
    )


@torch.no_grad()
def create_states(
    rule: Rule,
    owner: HostParam,
    groups: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    files: StateFiles | None = None,
) -> None:
    """Create a parameter's missing states on the host; weights come from the device.

    States that a first step treats specially are kept in `owner.unmade`. All but numbers are moved
    into `files` if there are any, which have room for them.
    """
    group = groups[owner.group_index]
    host = nn.Parameter(owner.param.detach().to("cpu").contiguous(), requires_grad=False)
    states: dict[Tensor, dict[str, Any]] = {host: owner.states}
    host_groups = [
        {**each, "params": [host if param is owner.param else param for param in each["params"]]}
        for each in groups
        if rule.draws  # only random numbers depend on a parameter's place among all
    ]
    host_group = {**group, "params": [host]}
    missing = [state.key for state in rule.states if owner.tensor(state.key) is None]
    before = {*owner.states}
    created = create_missing(rule, states, host_group, [host], defaults, groups=host_groups)
    owner.new.update(owner.states.keys() - before)
    known = [*owner.order, *owner.states]
    keys = ["step", *(state.key for state in rule.states)]
    owner.order[:] = [key for key in keys if key in known]
    for values, key in created:
        owner.unmade[key] = values.pop(key)
    if files is not None:
        files.move(owner, missing)


def states_to_use(
    rule: Rule, groups: Sequence[Mapping[str, Any]], owners: Iterable[HostParam]
) -> tuple[list[bool], list[Any]]:
    """Return which states the options of groups ask for, and the memory of all states."""
    present = [state.is_present(group) for group in groups for state in rule.states]
    return present, [owner.memory(key) for owner in owners for key in owner.order]


def begin_anew(
    rule: Rule,
    owner: HostParam,
    keys: Iterable[str],
    groups: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
) -> None:
    """Give some states their first values; let those go that the group's options do not ask for."""
    kept = {key: value for key, value in owner.states.items() if key not in keys}
    new = HostParam(owner.param, owner.name, owner.group_index, kept)
    create_states(rule, new, groups, defaults)
    for key in keys:
        if (first := new.states.get(key)) is None:
            owner.drop([key])
        else:
            to_local(owner.states[key]).copy_(to_local(first))
