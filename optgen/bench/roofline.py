"""The memory limit (roofline): a C++ loop that reads and writes the tensors of a step."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_int64, c_uint32, c_void_p
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.contract.states import Shape, fact_holds
from optgen.runtime.rule import State, truth
from optgen.runtime.toolchain import library_cache
from optgen.runtime.torch_private import thread_pool


@dataclass(frozen=True)
class Access:
    """A tensor that a sweep reads, and writes back if `stored`.

    `key` is "param", "grad" or the key of a state. Any other key names temporary memory of a
    step.
    """

    key: str
    stored: bool = False
    shape: Shape = "like"  # "like" the parameter, or one number per "row" or "col"
    when: str | None = None  # key of a group value or extra input: no access if false

    def shape_for(self, param: Tensor) -> list[int]:
        """Return the shape of the tensor for a parameter."""
        return State(self.key, shape=self.shape).shape_for(param)


@dataclass(frozen=True)
class Traffic:
    """The accesses of each sweep of a step, for parameters to which the facts apply."""

    sweeps: tuple[tuple[Access, ...], ...]
    facts: Mapping[str, bool] = field(default_factory=dict)

    def applies_to(self, param: Tensor, group: Mapping[str, object]) -> bool:
        """Tell whether the facts apply to a parameter of a group."""
        facts = self.facts.items()
        return all(fact_holds(fact, param.shape, group) is holds for fact, holds in facts)

    def accesses_by_sweep(self, group: Mapping[str, object]) -> Iterator[list[Access]]:
        """Yield the accesses of each sweep for the values of a group, stored tensors first."""
        for sweep in self.sweeps:
            accessed = [a for a in sweep if a.when is None or truth(group.get(a.when))]
            yield sorted(accessed, key=lambda access: not access.stored)


_MAX_STREAMS = 6  # of one loop; the same number as in roofline.cpp


_SWEEP_COUNTS = ("word_count", "first_element", "element_count", "read_count", "stored_count")
_WORD_BYTES = 4


class _Sweep(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in _SWEEP_COUNTS),
        ("streams", c_void_p * _MAX_STREAMS),
    ]


class _Roofline(ctypes.Structure):
    _fields_ = [
        ("sweep_count", c_int64),
        ("element_count", c_int64),
        ("sweeps", ctypes.POINTER(_Sweep)),
        ("zero", c_uint32),
        ("seen", c_uint32),
    ]


class Roofline:
    """Loop that reads and writes the tensors of an optimizer's step, and changes no value."""

    def __init__(self, traffics: Sequence[Traffic], optimizer: torch.optim.Optimizer) -> None:
        self._temporaries: dict[tuple[int, str, Shape], Tensor] = {}
        self._gradient_slots: list[tuple[_Sweep, int, Tensor]] = []
        params = [(p, group) for group in optimizer.param_groups for p in group["params"]]
        sweeps: list[_Sweep] = []
        first_element = 0
        for param, group in params:
            (traffic,) = (each for each in traffics if each.applies_to(param, group))
            for accesses in traffic.accesses_by_sweep(group):
                sweeps += self._sweeps(accesses, param, optimizer.state[param], first_element)
            first_element += param.numel()
        self._sweep_array = (_Sweep * len(sweeps))(*sweeps)
        self._point_at_sweep_array(sweeps)
        self._struct = _Roofline(len(sweeps), first_element, self._sweep_array)
        self._run = _library().optgen_roofline

    @property
    def bytes_per_step(self) -> int:
        """Bytes read and written in a step."""
        return sum(
            _WORD_BYTES * sweep.word_count * (sweep.read_count + sweep.stored_count)
            for sweep in self._sweep_array
        )

    def update_gradient_addresses(self) -> None:
        """Update the addresses of the parameters' gradients."""
        for sweep, index, param in self._gradient_slots:
            assert param.grad is not None
            sweep.streams[index] = param.grad.data_ptr()

    def step(self) -> None:
        """Run all sweeps over all tensors once."""
        self._run(ctypes.byref(self._struct), ctypes.byref(thread_pool()))

    def _sweeps(
        self, accesses: list[Access], param: Tensor, state: dict[str, Any], first_element: int
    ) -> Iterator[_Sweep]:
        """Yield one sweep for the streams of each size; rows and columns have their own sizes."""
        streams = [(access, self._tensor(access, param, state)) for access in accesses]
        for word_count, streams_of_size in groupby(sorted(streams, key=_word_count), _word_count):
            same_size = list(streams_of_size)
            if len(same_size) > _MAX_STREAMS:
                raise ValueError(f"a roofline reads at most {_MAX_STREAMS} streams together")
            stored_count = sum(access.stored for access, _ in same_size)
            sweep = _Sweep(word_count, first_element, param.numel(), len(same_size), stored_count)
            for index, (access, tensor) in enumerate(same_size):
                sweep.streams[index] = tensor.data_ptr()
                if access.key == "grad":
                    self._gradient_slots.append((sweep, index, param))
            yield sweep

    def _tensor(self, access: Access, param: Tensor, state: dict[str, Any]) -> Tensor:
        if access.key == "param":
            return param
        if access.key == "grad":
            assert param.grad is not None
            return param.grad
        if access.key in state:
            value: Tensor = state[access.key]
            return value
        key = (id(param), access.key, access.shape)
        if key not in self._temporaries:
            self._temporaries[key] = param.new_zeros(access.shape_for(param))
        return self._temporaries[key]

    def _point_at_sweep_array(self, sweeps: list[_Sweep]) -> None:
        """Replace the sweeps of `_gradient_slots` by the array's, which the C++ loop reads."""
        index_of_sweep = {id(sweep): position for position, sweep in enumerate(sweeps)}
        self._gradient_slots = [
            (self._sweep_array[index_of_sweep[id(s)]], index, p)
            for s, index, p in self._gradient_slots
        ]


def _word_count(stream: tuple[Access, Tensor]) -> int:
    return stream[1].nbytes // _WORD_BYTES


@cache
def _library() -> ctypes.CDLL:
    source = Path(__file__).with_name("roofline.cpp").read_text(encoding="utf-8")
    return ctypes.CDLL(str(library_cache.library("roofline", source)))
