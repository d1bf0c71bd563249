"""The choices of an offloaded optimizer, checked before anything is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, SupportsFloat, SupportsIndex

import torch
from torch import nn

from optgen.offloading.buckets import ALIGNMENT
from optgen.offloading.state_files import check_folder

Gradients = Literal["stay", "leave"]
Hide = Literal["forward", "backward", "nothing"]


class Unsaid(Enum):
    """The default of an argument that None is a choice for."""

    UNSAID = "unsaid"


UNSAID = Unsaid.UNSAID


@dataclass(frozen=True, eq=False)
class Options:
    """The arguments of `optgen.offload` besides the rule, its arguments and the parameters."""

    gradients: Gradients
    hide: Hide
    clip_norm: float | Unsaid | None
    accumulation: int | None
    bucket_bytes: int
    slots: int
    threads: int
    keep_on_device: int
    state_dir: Path | None
    module: nn.Module | None
    time_limit: float

    def __post_init__(self) -> None:
        self._check_types()
        if self.gradients not in ("stay", "leave"):
            raise ValueError(f'gradients is "stay" or "leave", not {self.gradients!r}')
        if self.hide not in ("forward", "backward", "nothing"):
            raise ValueError(f'hide is "forward", "backward" or "nothing", not {self.hide!r}')
        if self.gradients == "leave" and self.clip_norm is UNSAID:
            raise ValueError(
                'gradients="leave" takes the gradients away during the backward pass, so that '
                "clip_grad_norm_ would find none: say clip_norm=1.0, or clip_norm=None"
            )
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"clip_norm must be greater than 0, and is {self.clip_norm}")
        if self.hide == "forward" and self.module is None:
            raise ValueError(
                'hide="forward" lets each module wait for its weights: pass the model as module='
            )
        if self.hide == "backward":
            self._check_backward()
        if self.accumulation is not None and self.gradients == "stay":
            raise ValueError('accumulation is counted only with gradients="leave"')
        for name in ("bucket_bytes", "slots", "accumulation"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, and is {value}")
        if self.bucket_bytes % ALIGNMENT:
            raise ValueError(
                f"bucket_bytes must be a multiple of {ALIGNMENT}, and is {self.bucket_bytes}"
            )
        if not self.time_limit > 0:
            raise ValueError(f"time_limit must be greater than 0, and is {self.time_limit}")
        if self.state_dir is not None:
            check_folder(self.state_dir)

    def _check_types(self) -> None:
        """Raise a TypeError for a value that would fail later, in a step."""
        for name in ("bucket_bytes", "slots", "accumulation", "keep_on_device", "threads"):
            value = getattr(self, name)
            if not isinstance(value, SupportsIndex | None):
                raise TypeError(f"{name} must be a whole number, and is {value!r}")
        for name in ("max_norm", "time_limit"):
            value = getattr(self, name)
            if not isinstance(value, SupportsFloat | None):
                name = name.replace("max_norm", "clip_norm")
                raise TypeError(f"{name} must be a number, and is {value!r}")
        if not isinstance(self.module, nn.Module | None):
            raise TypeError(f"module must be a torch.nn.Module, and is {self.module!r}")

    def _check_backward(self) -> None:
        """Raise a ValueError if steps cannot be taken while gradients come."""
        if self.gradients == "stay":
            raise ValueError('hide="backward" takes gradients as they come: gradients="leave"')
        if self.max_norm is not None:
            raise ValueError(
                'hide="backward" cannot clip by the norm, which is known only after the last '
                'gradient: take hide="forward"'
            )
        if self.accumulation is not None and self.accumulation > 1:
            raise ValueError('hide="backward" cannot accumulate gradients: take hide="forward"')

    @property
    def max_norm(self) -> float | None:
        """The norm that gradients are clipped to; None for no clipping."""
        return None if isinstance(self.clip_norm, Unsaid) else self.clip_norm

    @property
    def stores_gradients(self) -> bool:
        """Tell whether gradients are kept on the host until the step."""
        return self.gradients == "leave" and self.hide != "backward"

    @property
    def gradient_limit(self) -> int | None:
        """The largest number of gradients of a parameter between two steps; None for any number."""
        return 1 if self.hide == "backward" else self.accumulation

    @property
    def stored_dtype(self) -> torch.dtype | None:
        """The dtype of gradients that are kept on the host; None for that of the parameters."""
        return None if self.accumulation == 1 else torch.float32

    @property
    def ring_bytes(self) -> int:
        """The bytes of pinned memory."""
        return 2 * self.slots * self.bucket_bytes


def thread_count(threads: int | None) -> int:
    """Return the threads of a kernel's call; by default this process's share of cores, less one.

    Raises:
        ValueError: `threads` is less than 1.
    """
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
        return max(1, (cores or 1) // max(1, ranks) - 1)
    if isinstance(threads, SupportsIndex) and threads < 1:
        raise ValueError(f"threads must be at least 1, and is {threads}")
    return threads
