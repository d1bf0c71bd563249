"""Functions generated from `@elementwise` rules, when they run: parallel lists, and no optimizer.

One tensor of each list is updated as a parameter is: the first list that the rule writes stands for
parameters, the first that it only reads for gradients, and all others for states.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, is_tensor
from torch.autograd.graph import increment_version

from optgen.runtime import choice, unfused
from optgen.runtime.gradients import all_plain, reals, traits
from optgen.runtime.private import capturing, foreach_devices, is_neg, set_grad_enabled
from optgen.runtime.rule import Rule, number
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.fused_cpu.again import Again
    from optgen.runtime.fused_triton import Roster

_dtype = attrgetter("dtype")
_shape = attrgetter("shape")
_KEPT = 4  # so many models that are averaged take turns without a new table
_CPU = (None, "fused_cpu")


class UnfitError(TypeError):
    """There are tensors in the lists that no rule can take; nothing was changed."""


class Elementwise:
    """What a generated function calls, with its lists in the order that lowerings take them."""

    def __init__(self, rule: Rule, lowerings: str) -> None:
        self.rule, self.lowerings = rule, lowerings
        self.written = (True, False, *(state.written for state in rule.states))
        self._known: dict[int, Again] = {}  # by the length of the lists
        self._rosters: list[tuple[Work, Roster]] = []
        self._captured: list[Roster] = []  # a graph reads its own for as long as it is replayed
        self._rostering = Lock()

    def __call__(self, *lists: Sequence[Tensor], **hypers: Any) -> None:
        """Update the lists that the rule writes, in place."""
        columns = [column if type(column) is list else list(column) for column in lists]
        if not any(columns) or self._again(columns, hypers):
            return
        work = self._work(columns, hypers)
        enabled = torch.is_grad_enabled()
        set_grad_enabled(False)
        try:
            for part in work.parts or (work,):
                self._update(part)
        finally:
            set_grad_enabled(enabled)

    @property
    def signature(self) -> Callable[..., None]:
        """The generated function, whose annotations say what its numbers may be."""
        function: Callable[..., None] = getattr(sys.modules[self.lowerings], self.rule.name)
        return function

    def _again(self, lists: list[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Do what the last call with lists as long did, if nothing speaks against it."""
        known = self._known.get(len(lists[0]))
        if known is None or choice.forced() not in _CPU or not known.run(lists, hypers):
            return False
        self._tell_autograd(lists[2:])
        return True

    def _tell_autograd(self, others: list[list[Tensor]]) -> None:
        """Of what changes, kernels count the versions of the first list only."""
        for column, written in zip(others, self.written[2:], strict=True):
            if written:
                increment_version(column)

    def _work(self, lists: list[list[Tensor]], hypers: dict[str, Any]) -> Work:
        """The lists as an optimizer's parameters, gradients and states."""
        if others := {type(t).__name__ for t in chain(*lists) if not is_tensor(t)}:
            raise TypeError(f"{self.rule.name} takes tensors, but lists hold a {min(others)}")
        if reason := obstacle(lists):
            raise UnfitError(f"{self.rule.name} {reason}")
        params, grads, *states = map(reals, lists, self.written)
        shapes = list(map(_shape, params))
        if any(list(map(_shape, column)) != shapes for column in (grads, *states)):
            raise ValueError(f"the lists of {self.rule.name} have no equal lengths and shapes")
        ordinary = all_plain(grads) and len(set(map(id, lists[0]))) == len(params)
        found = traits(self.rule, lists[0], params, grads, ordinary)
        work = Work(hypers, params, params, grads, states, [], [], {}, found, [])
        work.divide()
        return work

    def _update(self, work: Work) -> None:
        lowering = self._choose(work)
        if lowering.startswith("fused"):
            others = work.states  # a kept work lets go of them
            self._fused(work, lowering)
            self._tell_autograd(others)
        else:
            update = unfused.load(self.lowerings, lowering, "update")
            hypers = {key: number(work.group[key]) for key in self.rule.hypers}
            for columns, _, _ in unfused.buckets(self.rule, work, by_value=True):
                update(*self._of_one_dtype(columns), **hypers)

    def _choose(self, work: Work) -> str:
        """The lowering that `use_lowering` asks for, or the fastest that is right."""
        device, wish = work.trait.device, choice.forced()
        lowering = wish or choice.FUSED.get(device, "foreach")
        reason = choice.why_not(self, work, lowering)
        if not reason and lowering.startswith("fused") and any(map(is_neg, work.params)):
            reason = "tensors whose memory holds their negatives"
        if reason and wish is not None:
            raise RuntimeError(f"{self.rule.name} cannot run through {wish!r}: {reason}")
        if wish is not None or not (reason or lowering == "foreach"):
            return lowering
        fast = device in foreach_devices() and not choice.only_forloop(work)
        return "foreach" if fast else "forloop"

    def _of_one_dtype(self, columns: list[list[Tensor]]) -> Iterator[list[Tensor]]:
        """The lists, what is only read in the type of what is written: torch's words want that."""
        for column, written in zip(columns, self.written, strict=True):
            pairs = zip(column, columns[0], strict=True)
            yield column if written else [tensor.to(first.dtype) for tensor, first in pairs]

    def _fused(self, work: Work, lowering: str) -> None:
        if lowering == "fused_triton":
            with self._rostering:
                self._fused_triton(work)
            return
        from optgen.runtime import fused_cpu

        known = fused_cpu.update(self, work)
        if known is not None and not work.columns:
            for length in list(self._known)[_KEPT - 1 :]:
                del self._known[length]
            self._known = {len(work.params): known, **self._known}

    def _fused_triton(self, work: Work) -> None:
        """Update through a table that is kept, if one fits; it holds no tensor between calls."""
        from optgen.runtime.fused_triton import Roster

        if capturing():
            self._captured.append(Roster(self, [work], []))
            self._captured[-1].update(self, [work])
            return
        for known, roster in self._rosters:
            known.take(work)
            try:
                if len(known.traits) == len(work.traits) and roster.fits([known]):
                    roster.update(self, [known])
                    return
            finally:
                known.let_go()
        roster = Roster(self, [work], None)
        roster.update(self, [work])
        work.let_go()
        self._rosters = [(work, roster), *self._rosters[: _KEPT - 1]]


def obstacle(lists: Sequence[Sequence[Tensor]]) -> str:
    """Say in a few words why no rule can take these lists; nothing if one can."""
    dtypes = set(map(_dtype, chain.from_iterable(lists)))
    strange = [str(t) for t in dtypes if not (t.is_floating_point or t.is_complex)]
    if strange:
        return f"takes real or complex numbers, not {min(strange)}"
    if all(map(all_plain, lists)):
        return ""
    return next(filter(None, map(_row_obstacle, zip(*lists, strict=False))), "")


def _row_obstacle(row: tuple[Tensor, ...]) -> str:
    """The same for tensors that belong together, of which a process may hold a part."""
    places = [(getattr(t, "device_mesh", None), getattr(t, "placements", None)) for t in row]
    if any(place != places[0] for place in places):
        return "takes tensors that processes share in one way only"
    if any(placement.is_partial() for placement in places[0][1] or ()):
        return "takes no tensors that processes have still to add up"
    strange = [type(t).__name__ for t in row if places[0][1] is None and not all_plain([t])]
    return f"takes no tensors of class {strange[0]}" if strange else ""
