"""Test states in mapped files: the same bits, full disks, and nothing left behind."""

from __future__ import annotations

import copy
import gc
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from offload.training import (
    OPTIONS,
    assert_equal,
    master,
    network,
    offloaded,
    one_param,
    pair,
    train,
)
from torch import nn

import optgen
from optgen import compose, modifiers
from optgen.offloading import OffloadError
from optgen.offloading.state_files import StateFiles

QUANTIZED = compose("adamw", modifiers.quantized(min_elements=1))


def mapped_bytes(folder: Path) -> int:
    """Return the bytes of unnamed files in a folder that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = [line for line in lines if f" {folder}/" in line and line.endswith("(deleted)")]
    spans = [line.split()[0].split("-") for line in files]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse larger files, as a quota does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("options", [{}, {"gradients": "leave", "clip_norm": 1.0}], ids=str)
@pytest.mark.parametrize(
    "rule", ["adamw", "sgd", "lamb", QUANTIZED], ids=["adamw", "sgd", "lamb", "8 bits"]
)
def test_the_bits_are_those_of_states_in_memory(
    rule: Any, options: dict[str, Any], sim: Any, tmp_path: Path
) -> None:
    hyper = {"momentum": 0.9} if rule == "sgd" else {}
    models = network("sim"), network("sim")
    folders = tmp_path, None
    made = [
        offloaded(model, rule, state_dir=folder, lr=1e-2, **hyper, **options)
        for model, folder in zip(models, folders, strict=True)
    ]
    for model, optimizer in zip(models, made, strict=True):
        with optimizer:
            train(model, optimizer, 4)

    assert_equal(*models)
    saved, expected = (each.state_dict()["state"] for each in made)
    for values, others in zip(saved.values(), expected.values(), strict=True):
        assert list(values) == list(others)
        assert all(torch.equal(values[key], others[key]) for key in values)
    in_files, in_memory = (each.report() for each in made)
    assert in_files.file_bytes > 0 == in_memory.file_bytes
    assert in_files.host_bytes + in_files.file_bytes == in_memory.host_bytes
    assert "in files" in str(in_files)


def test_states_are_on_the_disk_and_the_folder_is_empty(sim: Any, tmp_path: Path) -> None:
    gc.collect()
    before = mapped_bytes(tmp_path)
    with optgen.offload("adamw", [one_param(1 << 16)], state_dir=tmp_path, **OPTIONS) as optimizer:
        assert mapped_bytes(tmp_path) - before == optimizer.report().file_bytes == 12 << 16
        assert list(tmp_path.iterdir()) == []
    del optimizer
    gc.collect()

    assert mapped_bytes(tmp_path) == before


def test_a_checkpoint_goes_both_ways(sim: Any, tmp_path: Path) -> None:
    model, theirs = network("sim"), network()
    with offloaded(model, state_dir=tmp_path) as first:
        train(model, first)
        saved = tmp_path / "saved.pt"
        torch.save(first.state_dict(), saved)
    plain = master("adamw")(theirs.parameters(), lr=1e-2)
    train(theirs, plain)

    assert saved.stat().st_size < 1.2 * first.report().file_bytes + 20_000  # each state once
    loaded = torch.load(saved, weights_only=True)
    with offloaded(model, state_dir=tmp_path) as second:
        second.load_state_dict(copy.deepcopy(loaded))
        before = mapped_bytes(tmp_path)
        train(model, second, 2, first=3)
        train(theirs, plain, 2, first=3)
        assert_equal(model, theirs)
        assert mapped_bytes(tmp_path) == before  # a load copies into the files


def test_groups_and_states_that_come_later_are_in_files(sim: Any, tmp_path: Path) -> None:
    ours, theirs = network("sim"), network()
    first = optgen.offload("adamw", ours.parameters(), state_dir=tmp_path, lr=1e-2, **OPTIONS)
    second = master("adamw")(theirs.parameters(), lr=1e-2)
    extra, other = one_param(640), nn.Parameter(torch.ones(640))
    with first:
        for model, optimizer, param in ((ours, first, extra), (theirs, second, other)):
            train(model, optimizer, 1)
            optimizer.add_param_group({"params": [param], "amsgrad": False})
            for group in optimizer.param_groups:
                group["amsgrad"] = True
            param.grad = torch.ones_like(param)
            train(model, optimizer, 2, first=1)
        report = first.report()

    assert_equal(ours, theirs)
    assert torch.equal(extra.detach().cpu(), other)
    elements = sum(param.numel() for param in [*ours.parameters(), extra])
    assert report.file_bytes == 16 * elements


@pytest.mark.parametrize("error", ["limit", "free"])
def test_a_full_disk_is_told_with_its_bytes(error: str, sim: Any, tmp_path: Path) -> None:
    gc.collect()
    before, pinned = mapped_bytes(tmp_path), sim.counts()["pinned"]
    if error == "free":
        size = shutil.disk_usage(tmp_path).free + (1 << 40)
        with pytest.raises(OffloadError, match=rf"need {size:,} bytes in state_dir=.*are free"):
            StateFiles(tmp_path).reserve(size)
    else:
        message = r"need 786,432 bytes in state_dir=.*\d are free: File too large\. Choose"
        with largest_file(500_000), pytest.raises(OffloadError, match=message):
            optgen.offload("adamw", [one_param(1 << 16)], state_dir=tmp_path, **OPTIONS)
    gc.collect()

    assert (mapped_bytes(tmp_path), sim.counts()["pinned"]) == (before, pinned)
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_the_disk_has_no_room_for_changes_nothing(sim: Any, tmp_path: Path) -> None:
    ours, first, theirs, second = pair(state_dir=tmp_path)
    with first:
        train(ours, first, 1)
        with largest_file(500_000), pytest.raises(OffloadError, match="File too large"):
            first.add_param_group({"params": [("large", one_param(1 << 16))]})
        assert len(first.param_groups) == 1
        train(ours, first, 2, first=1)
    train(theirs, second)

    assert_equal(ours, theirs)


def test_folders_that_are_refused(sim: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("missing", "file"):
        with pytest.raises(ValueError, match=rf"state_dir='.*{folder}' is not a folder"):
            optgen.offload("adamw", [one_param()], state_dir=tmp_path / folder, **OPTIONS)
    with pytest.raises((ValueError, OffloadError), match=r"state_dir='/proc'"):
        optgen.offload("adamw", [one_param()], state_dir="/proc", **OPTIONS)


def test_memory_is_asked_only_for_what_stays_there(
    sim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optgen.offloading.host_memory.available_bytes", lambda: 30_000)
    params = [one_param(1000) for _ in range(5)]
    with pytest.raises(MemoryError):
        optgen.offload("adamw", params, **OPTIONS)
    optgen.offload("adamw", params, state_dir=tmp_path, **OPTIONS).close()


FULL = """
import device
device.load()
from offload.training import OPTIONS, one_param
import optgen
kept = optgen.offload("adamw", [one_param(1 << 16)], state_dir={folder!r}, **OPTIONS)
try:
    optgen.offload("adamw", [one_param(1 << 16)], state_dir={folder!r}, **OPTIONS)
except optgen.offloading.OffloadError as error:
    print(error)
param = kept.param_groups[0]["params"][0]
param.grad = param.detach() + 1
kept.step()
"""


@pytest.mark.thorough
def test_a_small_disk_that_is_full(tmp_path: Path) -> None:
    """A disk in memory of 1 MiB holds the states of one optimizer, which goes on."""
    tests = Path(__file__).parent.parent
    script = FULL.format(folder=str(tmp_path))
    mount = f'mount -t tmpfs -o size=1m none "{tmp_path}" && exec "$0" -c "$1"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("this system gives no namespaces")
    done = subprocess.run(
        [*namespace, "sh", "-c", mount, sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "the states need 786,432 bytes" in done.stdout
    assert "where 262,144 are free" in done.stdout
