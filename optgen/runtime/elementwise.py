"""Run functions generated from `@elementwise` rules: they update parallel lists of tensors.

Corresponding tensors of the lists are updated as one parameter of an optimizer is. The first list
that the rule writes takes the place of parameters, the first list that it only reads takes the
place of gradients, and all other lists take the place of states.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, get_type_hints

import torch
from torch import Tensor, is_tensor
from torch.autograd.graph import increment_version

from optgen.runtime.backends import BACKENDS, FUSED, CachedCall, backend
from optgen.runtime.batch.batch import Batch, dispatch_keys, why_forloop_only
from optgen.runtime.batch.check_batch import check_storages
from optgen.runtime.batch.step_context import Refusal, current_forced_lowering
from optgen.runtime.choose_lowering import build_or_reason
from optgen.runtime.rule import Rule, State
from optgen.runtime.tensors.dtensor import all_plain, real_local_views
from optgen.runtime.torch_private import foreach_devices, is_neg, numel, set_grad_enabled

_shape = attrgetter("shape")


def _fit(state: State, tensors: list[Tensor], params: list[Tensor]) -> bool:
    """Tell whether each tensor has the shape that a list has beside a parameter.

    A number is any tensor of one element.
    """
    if state.shape == "scalar":
        return len(tensors) == len(params) and all(numel(tensor) == 1 for tensor in tensors)
    if state.shape == "like":
        return list(map(_shape, tensors)) == list(map(_shape, params))
    return [list(tensor.shape) for tensor in tensors] == list(map(state.shape_for, params))


_MAX_CACHED_CALLS = 4  # each is for lists of one length


class Elementwise:
    """The body of a generated function; takes its lists in the order of a lowering's arguments."""

    def __init__(self, rule: Rule, lowerings: str) -> None:
        self.rule, self.lowerings = rule, lowerings
        # Whether the rule writes each list: parameters, gradients, then the states.
        self.written = (True, False, *(state.written for state in rule.states))
        self._cached: dict[int, tuple[str, CachedCall]] = {}  # by the length of the lists

    def __call__(self, *sequences: Sequence[Tensor], **hypers: Any) -> None:
        """Update the lists that the rule writes, in place."""
        lists = [each if type(each) is list else list(each) for each in sequences]
        if any(lists) and not self._run_cached(lists, hypers):
            self.prepare(lists, hypers)()

    def prepare(
        self, lists: list[list[Tensor]], hypers: dict[str, Any], may_fuse: bool = True
    ) -> Callable[[], None]:
        """Check lists that are not empty, and choose lowerings; return the call that updates."""
        batch = self._make_batch(lists, hypers)
        parts = batch.parts or (batch,)
        lowerings_and_parts = [(self._choose(part, may_fuse), part) for part in parts]
        return partial(self._update_all, lowerings_and_parts)

    def _update_all(self, lowerings_and_parts: Sequence[tuple[str, Batch]]) -> None:
        """Update batches through their lowerings, with autograd disabled."""
        was_enabled = torch.is_grad_enabled()
        set_grad_enabled(False)
        try:
            for lowering, batch in lowerings_and_parts:
                self._update(lowering, batch)
        finally:
            set_grad_enabled(was_enabled)

    def hyper_annotations(self) -> dict[str, Any]:
        """Return the annotations of the generated function."""
        return get_type_hints(getattr(sys.modules[self.lowerings], self.rule.name))

    def _run_cached(self, lists: list[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Run the cached call for lists of this length, if it is valid; tell whether it ran."""
        lowering, cached = self._cached.get(len(lists[0]), ("", None))
        if (
            cached is None
            or current_forced_lowering() not in (None, lowering)
            or not cached.run(lists, hypers)
        ):
            return False
        self._advance_versions(lists[2:])
        return True

    def _advance_versions(self, states: list[list[Tensor]]) -> None:
        """Advance autograd's versions of written states; kernels do it for parameters only."""
        for tensors, written in zip(states, self.written[2:], strict=True):
            if written:
                increment_version(tensors)

    def _make_batch(self, lists: list[list[Tensor]], hypers: dict[str, Any]) -> Batch:
        """Check the lists, and make a batch: parameters, gradients and states."""
        if classes := {type(t).__name__ for t in chain(*lists) if not is_tensor(t)}:
            raise TypeError(f"{self.rule.name} takes tensors, but lists hold a {min(classes)}")
        if reason := obstacle(lists):
            raise UnfitError(f"{self.rule.name} {reason}")
        params, grads, *states = map(real_local_views, lists, self.written)
        shapes = list(map(_shape, params))
        if list(map(_shape, grads)) != shapes or not all(
            map(_fit, self.rule.states, states, repeat(params))
        ):
            raise ValueError(
                f"the lists of {self.rule.name} differ in length or in the shapes of their tensors"
            )
        names = (f"list {number} of {self.rule.name}" for number in range(len(lists)))
        check_storages(dict(zip(names, (params, grads, *states), strict=True)))
        has_no_duplicates = len(set(map(id, lists[0]))) == len(params)
        is_ordinary = all_plain(grads) and has_no_duplicates
        keys = dispatch_keys(self.rule, lists[0], params, grads, is_ordinary, {})
        batch = Batch(
            group=hypers,
            members=params,
            params=params,
            grads=grads,
            states=states,
            dispatch_keys=keys,
        )
        batch.split_into_parts()
        return batch

    def _update(self, lowering: str, batch: Batch) -> None:
        """Update a batch through a lowering; keep the cached call for the next time."""
        states, length = (
            batch.states,
            len(batch.params),
        )  # read now: the backend may empty the batch
        try:
            cached = backend(lowering).call(self, batch)
        except Refusal:
            lowering = self._choose(batch, may_fuse=False)
            cached = backend(lowering).call(self, batch)
        if BACKENDS[lowering].device:
            self._advance_versions(states)
        if cached is not None and not batch.indices:
            other_calls = [entry for entry in self._cached.items() if entry[0] != length]
            self._cached = {
                length: (lowering, cached),
                **dict(other_calls[: _MAX_CACHED_CALLS - 1]),
            }

    def _choose(self, batch: Batch, may_fuse: bool) -> str:
        """Return the lowering that `use_lowering` forces, or the fastest that fits the batch."""
        device, forced_lowering = batch.dispatch_key.device, current_forced_lowering()
        lowering = forced_lowering or (may_fuse and FUSED.get(device)) or "foreach"
        reason = build_or_reason(self, batch, lowering)
        if not reason and BACKENDS[lowering].device and any(map(is_neg, batch.params)):
            reason = "tensors whose memory holds their negatives"
        if reason and forced_lowering is not None:
            raise RuntimeError(f"{self.rule.name} cannot run through {forced_lowering!r}: {reason}")
        if forced_lowering is not None or not (reason or lowering == "foreach"):
            return lowering
        prefers_foreach = device in foreach_devices() and not why_forloop_only(batch)
        return "foreach" if prefers_foreach else "forloop"


_dtype = attrgetter("dtype")


class UnfitError(TypeError):
    """Raised before any change if the lists have tensors that no rule can take."""


def obstacle(lists: Sequence[Sequence[Tensor]]) -> str:
    """Return a short reason why no rule can take these lists; "" if a rule can."""
    dtypes = set(map(_dtype, chain.from_iterable(lists)))
    unsupported = [
        str(dtype) for dtype in dtypes if not (dtype.is_floating_point or dtype.is_complex)
    ]
    if unsupported:
        return f"takes real or complex numbers, not {min(unsupported)}"
    if all(map(all_plain, lists)):
        return ""
    return next(filter(None, map(_class_obstacle, zip(*lists, strict=False))), "")


def _class_obstacle(tensors: tuple[Tensor, ...]) -> str:
    """Return a short reason why no rule can take tensors of these classes; "" if a rule can.

    The tensors are one from each list, at the same index.
    """
    shardings = [
        (getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None))
        for tensor in tensors
    ]
    if any(sharding != shardings[0] for sharding in shardings):
        return "takes DTensors only with equal meshes and placements in all lists"
    placements = shardings[0][1]
    if any(placement.is_partial() for placement in placements or ()):
        return "takes no DTensors with a Partial placement: redistribute them first"
    classes = [type(t).__name__ for t in tensors if placements is None and not all_plain([t])]
    return f"takes no tensors of class {classes[0]}" if classes else ""
