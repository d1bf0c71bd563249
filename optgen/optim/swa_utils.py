"""The mirror of torch.optim.swa_utils: running means of a model's weights, in one sweep.

The rules `ema` and `swa` of specs/averaging.py compute the means. They do not accept integer
tensors or tensor subclasses; torch's function for one tensor updates those.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import swa_utils as _torch
from torch.optim.swa_utils import get_ema_avg_fn, get_swa_avg_fn, update_bn

from optgen.generated.averaging.ema import ema
from optgen.generated.averaging.swa import swa
from optgen.optim.lr_scheduler.cycles import SWALR
from optgen.runtime.elementwise import UnfitError, obstacle
from optgen.runtime.tensors.dtensor import all_plain
from optgen.runtime.torch_private import group_tensors

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

SWALR.__module__ = __name__

Count = Tensor | int
Pairs = list[tuple[Tensor, Tensor]]
MultiAvgFn = Callable[[Any, Any, Any], None]
_device = attrgetter("device")


@dataclass(frozen=True)
class _Update:
    """Function that updates lists of means. It is an object, so it can be pickled with a model."""

    decay: float | None = None  # of an exponential mean; None for equally weighted means

    def __call__(
        self, averaged: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Count
    ) -> None:
        """Update the means in place."""
        with suppress(UnfitError):
            self._update_in_one_sweep(averaged, current, num_averaged)
            return
        accepted, refused = _split_by_acceptance(averaged, current)
        self._update_by_torch(refused, num_averaged)
        means, tensors = [mean for mean, _ in accepted], [tensor for _, tensor in accepted]
        self._update_in_one_sweep(means, tensors, num_averaged)

    def _update_in_one_sweep(
        self, averaged: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Count
    ) -> None:
        if self.decay is None:
            swa(averaged, current, count=num_averaged)
        else:
            ema(averaged, current, decay=self.decay)

    def _update_by_torch(self, pairs: Pairs, num_averaged: Count) -> None:
        """Update the means of tensors that our rules do not accept, by torch's function."""
        average = get_swa_avg_fn() if self.decay is None else get_ema_avg_fn(self.decay)
        with torch.no_grad():
            for mean, tensor in pairs:
                mean.copy_(average(mean, tensor, num_averaged))


def _split_by_acceptance(
    averaged: Sequence[Tensor], current: Sequence[Tensor]
) -> tuple[Pairs, Pairs]:
    """Split pairs of tensors into those that our rules accept, and those that they refuse."""
    accepted, refused = Pairs(), Pairs()
    is_accepted: dict[Any, bool] = {}  # by the types and dtypes of a pair
    for pair in zip(averaged, current, strict=True):
        pair_types = tuple((type(tensor), tensor.dtype) for tensor in pair)
        if pair_types not in is_accepted or not all_plain(pair):
            is_accepted[pair_types] = not obstacle([[tensor] for tensor in pair])
        (accepted if is_accepted[pair_types] else refused).append(pair)
    return accepted, refused


_equal_weights = _Update()


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """Return a function that updates lists of exponential moving averages.

    Args:
        decay: the fraction of a mean that is kept, in [0, 1].

    Raises:
        ValueError: decay is outside that range.
    """
    get_ema_avg_fn(decay)  # checks the range
    return _Update(decay)


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """Return a function that updates lists of equally weighted means."""
    return _equal_weights


class AveragedModel(_torch.AveragedModel):
    """Copy of a model that holds running means of the model's weights.

    It derives from torch's class, with its arguments, attributes and checkpoints. Only the update
    is ours. By default all updates have the same weight, as in stochastic weight averaging;
    `multi_avg_fn=get_ema_multi_avg_fn(0.999)` makes an exponential moving average.

    Means of 16-bit tensors are also kept in float32, outside of checkpoints: 16 bits do not hold
    their increments. The model has the rounded means, and averaging functions get float32.

    Args:
        model (Module): The model; it is copied.
        device (device, optional): The device of the mean. Default: that of the model.
        avg_fn (callable, optional): `avg_fn(mean, tensor, count)`, the new mean of one tensor.
        multi_avg_fn (callable, optional): `multi_avg_fn(means, tensors, count)`, which updates
            lists in place.
        use_buffers (bool): Average buffers too, instead of copying them. Default: False.

    Raises:
        AssertionError: Both `avg_fn` and `multi_avg_fn` are given.
    """

    _exact_means: tuple[Tensor | None, ...] = ()  # float32 for each mean of 16 bits

    def update_parameters(self, model: Module) -> None:
        """Update the means with the model's weights; the first call copies the weights."""
        means, tensors = self._matched_tensors(model)
        if self.n_averaged.item() == 0:
            _copy(means, tensors)
        else:
            self._average(means, tensors)
        if not self.use_buffers:
            buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))
            _copy([ours for ours, _ in buffers], [theirs for _, theirs in buffers])
        self.n_averaged += 1

    def _matched_tensors(self, model: Module) -> tuple[list[Tensor], list[Tensor]]:
        """Return the averaged tensors and the model's tensors, as many as both have."""
        means, tensors = list[Tensor](self.parameters()), list[Tensor](model.parameters())
        if self.use_buffers:
            means = [*self.module.parameters(), *self.module.buffers()]
            tensors = [*tensors, *model.buffers()]
        num_matched = min(len(means), len(tensors))
        return means[:num_matched], tensors[:num_matched]

    def _average(self, means: list[Tensor], tensors: list[Tensor]) -> None:
        """Update the means; those of 16 bits in float32."""
        exact = list(map(_exact_mean, means, chain(self._exact_means, repeat(None))))
        if self.avg_fn is not None and self.multi_avg_fn is None:
            self._average_each(exact, tensors)
        elif isinstance(update := self.multi_avg_fn or _equal_weights, _Update):
            update(exact, _on_devices_of(exact, tensors), self.n_averaged)
        else:
            self._average_lists(update, exact, tensors)
        pairs = [
            (mean, value) for mean, value in zip(means, exact, strict=True) if mean is not value
        ]
        _copy([mean for mean, _ in pairs], [value for _, value in pairs])
        self._exact_means = tuple(
            None if mean is value else value for mean, value in zip(means, exact, strict=True)
        )

    def _average_each(self, means: list[Tensor], tensors: list[Tensor]) -> None:
        """Update each mean by the caller's `avg_fn`."""
        assert self.avg_fn is not None
        for mean, tensor in zip(means, tensors, strict=True):
            old, current = mean.detach(), tensor.detach().to(mean.device)
            current = current.to(torch.promote_types(current.dtype, mean.dtype))
            old.copy_(self.avg_fn(old, current, self.n_averaged.to(mean.device)))

    def _average_lists(
        self, update: MultiAvgFn, means: list[Tensor], tensors: list[Tensor]
    ) -> None:
        """Call the caller's `multi_avg_fn` once for each device and dtype."""
        pairs = zip(_on_devices_of(means, tensors), means, strict=True)
        current = [t.detach().to(torch.promote_types(t.dtype, mean.dtype)) for t, mean in pairs]
        groups = group_tensors([[mean.detach() for mean in means], current])
        for (device, _), (group_means, group_current) in groups.items():
            update(group_means, group_current, self.n_averaged.to(device))


def _exact_mean(mean: Tensor, exact: Tensor | None) -> Tensor:
    """Return the mean in float32 if it has 16 bits, else the mean itself.

    `exact` is the mean after the last update. It no longer counts if the mean has changed since.
    """
    if not mean.is_floating_point() or mean.element_size() != 2:
        return mean
    is_current = exact is not None and exact.shape == mean.shape and exact.device == mean.device
    if exact is not None and is_current and torch.equal(exact.to(mean.dtype), mean):
        return exact
    return mean.detach().float()


def _on_devices_of(means: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Return each tensor on the device of its mean."""
    devices = list(map(_device, means))
    if devices == list(map(_device, tensors)):
        return tensors
    return [tensor.detach().to(device) for tensor, device in zip(tensors, devices, strict=True)]


@torch.no_grad()
def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets and all_plain(targets) and all_plain(sources):
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
