"""Test the simulated device's memory: faults of the host, freed memory, limits, counters."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import device

PAGE = 4096
TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def loaded() -> None:
    device.load()
    device.reset()


@pytest.mark.parametrize("access", ["ctypes.string_at(address, 1)", "ctypes.memset(address, 0, 1)"])
def test_the_host_faults_on_device_memory(access: str) -> None:
    code = (
        "import ctypes, torch, device; device.load(); x = torch.ones(4, device='sim'); "
        f"torch.accelerator.synchronize(); address = x.data_ptr(); {access}"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True)

    assert done.returncode == -signal.SIGSEGV


def test_freed_memory_holds_rubbish_and_is_used_again_at_once() -> None:
    count = 123 * PAGE // 4  # a size that no other test has freed
    first = torch.ones(count, device="sim")
    address = first.data_ptr()
    del first

    second = torch.empty(count, device="sim")

    assert second.data_ptr() == address
    assert second.cpu().view(torch.int32).eq(0x7F7F7F7F).all()


def test_another_stream_reads_rubbish_without_record_stream() -> None:
    read = {recorded: _read_late(recorded) for recorded in (False, True)}

    assert read[True].eq(1.0).all()
    assert not read[False].eq(1.0).any()


def _read_late(recorded: bool) -> torch.Tensor:
    """Free a tensor while another stream has yet to copy it; return what the copy has read."""
    x, target = torch.ones(8, device="sim"), torch.zeros(8).pin_memory()
    torch.accelerator.synchronize()
    stream = torch.Stream(device="sim")
    with device.configured(latency=0.05), stream:
        target.copy_(x, non_blocking=True)
        if recorded:
            x.record_stream(stream)
        del x
        stream.synchronize()
    return target


def test_peaks_and_copied_bytes_are_counted() -> None:
    before = device.counts()
    device.reset_counts()

    x = torch.ones(2 * PAGE // 4, device="sim")
    y = x.to("cpu")
    held = device.counts()
    del x

    assert held["device"] - before["device"] == 2 * PAGE
    assert held["device_peak"] - before["device"] == 2 * PAGE
    assert held["copied_to_host"] == y.nbytes
    assert held["copied_to_device"] == 0
    assert device.counts()["device"] == before["device"]


def test_pinned_bytes_are_exact() -> None:
    before = device.counts()["pinned"]

    x = torch.empty(100, dtype=torch.uint8, pin_memory=True)
    held = device.counts()["pinned"]
    assert x.is_pinned()
    assert not torch.empty(4).is_pinned()
    del x

    assert held - before == 100
    assert device.counts()["pinned"] == before


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_limits(kind: str) -> None:
    limit = {f"{kind}_limit": device.counts()[kind] + PAGE}
    options = {"device": "sim"} if kind == "device" else {"pin_memory": True}
    with device.configured(**limit):
        with pytest.raises(torch.OutOfMemoryError, match="asked for 8192 bytes"):
            torch.empty(2 * PAGE, dtype=torch.uint8, **options)
        fits = torch.empty(PAGE, dtype=torch.uint8, **options)

    assert fits.numel() == PAGE


def test_a_storage_that_grows_keeps_its_bytes() -> None:
    x = torch.ones(4, device="sim")
    x.untyped_storage().resize_(32)

    assert torch.equal(torch.as_strided(x, (4,), (1,)).cpu(), torch.ones(4))
