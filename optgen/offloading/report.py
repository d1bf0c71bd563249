"""Say what an offloaded optimizer holds and what its steps took."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from typing import Any, NamedTuple

from torch import Tensor

from optgen.offloading.pinned_ring import Timings
from optgen.runtime.tensors.dtensor import to_local


class Report(NamedTuple):
    """Bytes on each side, and the mean milliseconds of a step since the optimizer was made.

    `hidden` is the share of a step during which the training thread did not wait for it.
    """

    steps: int
    device_bytes: int  # of states of small parameters
    host_bytes: int  # of states in the memory of the host
    pinned_bytes: int
    to_host_bytes: int  # of a step
    to_device_bytes: int  # of a step
    step_ms: float
    kernel_ms: float
    copy_wait_ms: float
    caller_wait_ms: float
    hidden: float
    file_bytes: int = 0  # of states in `state_dir`

    def __str__(self) -> str:
        """Return a text of three lines."""
        return (
            f"states: {self.host_bytes:,} bytes on the host, {self.device_bytes:,} on the device"
            f"{f', {self.file_bytes:,} in files' if self.file_bytes else ''}; "
            f"pinned ring: {self.pinned_bytes:,} bytes\n"
            f"a step moves {self.to_host_bytes:,} bytes to the host and "
            f"{self.to_device_bytes:,} to the device\n"
            f"a step takes {self.step_ms:.1f} ms: {self.kernel_ms:.1f} in the kernel, "
            f"{self.copy_wait_ms:.1f} waiting for copies; training waits {self.caller_wait_ms:.1f} "
            f"ms for it ({self.hidden:.0%} hidden; mean of {self.steps} steps)"
        )


def make_report(
    state: Mapping[Tensor, Any],
    small: Set[Tensor],
    pinned_bytes: int,
    timings: Timings,
    is_in_files: bool,
) -> Report:
    """Return the report of an optimizer with this state.

    `small` are the device's parameters. The states of all others, except numbers, may be in files.
    """
    on_device = sum(_bytes(values) for param, values in state.items() if param in small)
    host_states = [values for param, values in state.items() if param not in small]
    on_host = sum(map(_bytes, host_states))
    in_files = on_host - sum(map(_number_bytes, host_states)) if is_in_files else 0
    count = max(timings.passes, 1)
    hidden = 1 - timings.caller_wait_seconds / timings.pass_seconds if timings.pass_seconds else 0
    return Report(
        timings.passes,
        on_device,
        on_host - in_files,
        pinned_bytes,
        timings.to_host_bytes // count,
        timings.to_device_bytes // count,
        1e3 * timings.pass_seconds / count,
        1e3 * timings.kernel_seconds / count,
        1e3 * timings.copy_wait_seconds / count,
        1e3 * timings.caller_wait_seconds / count,
        max(0.0, hidden),
        in_files,
    )


def group_lines(
    groups: Iterable[Mapping[str, Any]], on_host: Container[Tensor], threads: int, first_index: int
) -> list[str]:
    """Return a line about each group: what is stepped where."""
    lines = []
    for index, group in enumerate(groups, first_index):
        host_count = sum(param in on_host for param in group["params"])
        device_count = len(group["params"]) - host_count
        parts = [
            f"{host_count} parameters by a fused C++ kernel on the host, in "
            f"{threads} {'thread' if threads == 1 else 'threads'}"
        ] * bool(host_count)
        parts += [f"{device_count} small ones on the device"] * bool(device_count)
        lines.append(f"group {index}: offloaded: {'; '.join(parts) or 'no parameters'}")
    return lines


def _bytes(values: Mapping[str, Any]) -> int:
    tensors = [to_local(each) for each in values.values() if isinstance(each, Tensor)]
    sizes = [each.untyped_storage().nbytes() for each in tensors if each.dim()]
    return sum(sizes) + _number_bytes(values)


def _number_bytes(values: Mapping[str, Any]) -> int:
    tensors = [to_local(each) for each in values.values() if isinstance(each, Tensor)]
    return sum(each.nbytes for each in tensors if not each.dim())
