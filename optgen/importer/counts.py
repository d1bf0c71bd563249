"""Take a class's steps as they are, to see what counts them, and which groups the class takes."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.importer.places import line_that_sets
from optgen.importer.recording import NotImportedError

MATRIX, VECTOR = (4, 3), (5,)
"""The shapes of the parameters that runs have."""
NUM_COUNTED = 10
"""The number of steps that are taken to see which numbers count them."""


@dataclass(frozen=True)
class Counts:
    """The keys that count steps, the other numbers of the group that steps change, the attributes
    of the optimizer that count steps, the kind of the count `step` in a parameter's state, and the
    keys of all states.
    """

    counters: Mapping[str, int]
    changed: Mapping[str, float]
    attributes: frozenset[str]
    kind: str
    state_keys: frozenset[str]


def groups_of(params: Sequence[Any], is_split: bool, *, are_two: bool = False) -> list[Any]:
    """Return the first argument of a constructor: the parameters, or groups of them.

    `is_split`: the class takes groups that say `use_muon`, which is true for matrices. `are_two`:
    there are two groups, so that a norm of one group is not taken for one of all.
    """
    if are_two and len(params) > 1 and not is_split:
        return [{"params": params[::2]}, {"params": params[1::2]}]
    if not is_split:
        return list(params)
    return [
        {"params": part, "use_muon": use_muon}
        for use_muon in (True, False)
        if (part := [p for p in params if (p.ndim >= 2) == use_muon])
    ]


def takes_split_groups(cls: Any, settings: Mapping[str, Any]) -> bool:
    """Tell if the class asks its groups for `use_muon`."""
    asked: list[Any] = []

    class Probe(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            asked.append(key)
            return super().__contains__(key)

        def get(self, key: Any, default: Any = None) -> Any:
            asked.append(key)
            return super().get(key, default)

    try:
        cls([Probe(params=[torch.nn.Parameter(torch.ones(4, 3))])], **settings)
    except Exception:
        return "use_muon" in asked
    return False


def count(
    cls: Any,
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    *,
    is_split: bool,
) -> Counts:
    """Take some steps of parameters of these shapes, a matrix first, and return what they count.

    What counts does so with other arguments too; a sum of weights, `t ** 0`, only seems to count.
    """
    found = _counted(cls, settings, shapes, is_split=is_split)
    others = {name: x * 0.7 for name, x in arguments.items() if type(x) is float}
    others |= {name: x or 0.1 for name, x in arguments.items() if x == 0}
    try:
        other = _counted(cls, {**settings, **others}, shapes, is_split=is_split)
    except Exception:
        return found  # the class does not take these arguments
    lost = set(found.counters) - set(other.counters)
    return Counts(
        {key: x for key, x in found.counters.items() if key not in lost},
        {**found.changed, **{k: other.changed[k] for k in lost & set(other.changed)}},
        found.attributes,
        "" if "step" in lost else found.kind,
        found.state_keys | other.state_keys,
    )


def _counted(
    cls: Any, settings: Mapping[str, Any], shapes: Sequence[tuple[int, ...]], *, is_split: bool
) -> Counts:
    params = [torch.nn.Parameter(torch.ones(each, dtype=torch.float64)) for each in shapes]
    optimizer = cls(groups_of(params, is_split), **settings)
    first = _numbers(optimizer.param_groups[0])
    later = {str(key) for key in optimizer.param_groups[0]} - first.keys()
    seen: dict[str, list[float]] = defaultdict(list)
    in_group: dict[str, list[float]] = defaultdict(list)
    of_all: dict[str, list[float]] = defaultdict(list)
    hidden: list[dict[str, Any]] = []
    for _ in range(NUM_COUNTED):
        for p in params:
            p.grad = torch.full_like(p, 0.5)
        optimizer.step()
        alone = {key: x for key, x in optimizer.state.items() if not isinstance(key, Tensor)}
        for key, value in _numbers(alone).items():
            of_all[key].append(value)
        if set(alone) - set(of_all):
            raise _alone(cls, set(alone) - set(of_all))
        for key, value in _numbers(optimizer.param_groups[0]).items():
            in_group[key].append(value)
        for key, value in _numbers(optimizer.state[params[0]]).items():
            seen[key].append(value)
        hidden.append(_hidden(optimizer, params))
    attributes = _own_counters(cls, hidden)
    counters = {
        key: int(values[0]) - 1
        for key, values in (*seen.items(), *in_group.items(), *of_all.items())
        if values == [values[0] + n for n in range(NUM_COUNTED)] and values[0] in (0, 1, 2)
    }
    if others := of_all.keys() - counters.keys():
        raise _alone(cls, others)
    changed = {
        key: first.get(key, 0.0)
        for key, values in in_group.items()
        if key not in counters and (key in later or {first.get(key, values[0])} != set(values))
    }
    kind = ""
    if "step" in counters and "step" in optimizer.state[params[0]]:
        kind = "tensor" if isinstance(optimizer.state[params[0]]["step"], Tensor) else "int"
    keys = {str(key) for each in params for key in optimizer.state[each]}
    return Counts(counters, changed, attributes, kind, frozenset(keys))


def _own_counters(cls: type, hidden: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the attributes of the optimizer that count steps.

    `hidden`: after each step, what is kept outside of groups and states.

    Raises:
        NotImportedError: later steps change something else there, which a rule cannot see.
    """
    found = set()
    for name, last in hidden[-1].items():
        before = hidden[1].get(name)
        if last == before or last != last:
            continue
        owner, _, attribute = name.rpartition(" ")
        values = [each.get(name) for each in hidden]
        if owner != "self" or values != [n + 1 for n in range(NUM_COUNTED)]:
            raise NotImportedError(
                f"steps change `{attribute}` of {owner}, which a rule has no word for",
                line_that_sets(cls, attribute),
                hint="keep it in the state of the parameter: `self.state[p]`",
            )
        found.add(attribute)
    return frozenset(found)


def _hidden(optimizer: Any, params: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers and the lengths that are kept outside of groups and states."""
    cls = type(optimizer)
    places = {"self": vars(optimizer), "the module": vars(sys.modules[cls.__module__])}
    places |= {
        f"the class {each.__name__}": vars(each)
        for each in cls.__mro__
        if each not in torch.optim.Optimizer.__mro__
    }
    places |= {f"parameter {n}": vars(p) for n, p in enumerate(params)}
    found = {
        f"{place} {key}": _number_or_length(x)
        for place, names in places.items()
        for key, x in names.items()
        if key not in ("state", "param_groups", "defaults") and not key.startswith("__")
    }
    holders = {f"group {n}": each for n, each in enumerate(optimizer.param_groups)}
    holders |= {f"state {n}": each for n, each in enumerate(optimizer.state.values())}
    lengths = {
        f"{place} {key}": len(x)
        for place, holder in holders.items()
        if isinstance(holder, Mapping)
        for key, x in holder.items()
        if isinstance(x, _CONTAINERS)
    }
    return found | lengths


_CONTAINERS = (list, tuple, set, dict, deque)


def _number_or_length(x: Any, depth: int = 2) -> Any:
    """Return a number, or what stands for a container: its length, and numbers inside."""
    if isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 else None
    if not isinstance(x, _CONTAINERS) or not depth:
        return None
    inside = list(x.values() if isinstance(x, dict) else x)[:NUM_COUNTED]
    return len(x), [_number_or_length(each, depth - 1) for each in inside]


def _alone(cls: type, keys: AbstractSet[Any]) -> NotImportedError:
    key = min(map(str, keys))
    return NotImportedError(
        "states that belong to no parameter",
        line_that_sets(cls, key),
        hint="keep them in the states of the parameters: `self.state[p]`",
    )


def _numbers(holder: Mapping[Any, Any]) -> dict[str, float]:
    return {
        str(key): float(value)
        for key, value in holder.items()
        if type(value) in (int, float) or (isinstance(value, Tensor) and value.numel() == 1)
    }
