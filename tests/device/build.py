"""Compile the device's extension, once for each version of its sources and of torch.

DEVICE_FLAGS in the environment adds compiler flags: `make test-tsan` adds ThreadSanitizer. In
November 2026 it saw no race in the device's tests, except two in torch's own autograd engine, which
is not compiled for it (tsan.supp).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "native"
FOLDER = Path(__file__).parents[2] / "build" / "device"
COMPILER = os.environ.get("CXX", "g++").split()
TORCH = Path(torch.__file__).parent
FLAGS = [
    "-std=c++20",
    "-O1",
    "-g1",
    "-fPIC",
    "-Wall",
    f"-I{TORCH / 'include'}",
    f"-I{TORCH / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    *os.environ.get("DEVICE_FLAGS", "").split(),
]


@cache
def library() -> Path:
    """Return the path of the library. Of several processes one builds it, and the others wait.

    Raises:
        RuntimeError: The compiler failed; the message is its output.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    built = FOLDER / f"device-{_version()}.so"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _build(built)
    return built


def _version() -> str:
    digest = hashlib.sha256(f"{torch.__version__} {COMPILER} {FLAGS}".encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(built: Path) -> None:
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [built.with_suffix(f".{source.stem}.o") for source in sources]
    _run(
        [*COMPILER, *FLAGS, "-c", str(source), "-o", str(each)]
        for source, each in zip(sources, objects, strict=True)
    )
    libraries = [f"-L{TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-lpthread"]
    unfinished = built.with_suffix(".new")
    _run([[*COMPILER, *FLAGS, "-shared", *map(str, objects), *libraries, "-o", str(unfinished)]])
    unfinished.rename(built)
    for each in objects:
        each.unlink()


def _run(commands: Iterable[list[str]]) -> None:
    """Run commands at the same time."""
    running = [
        subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for each in commands
    ]
    outputs = [(process.communicate()[0], process.returncode) for process in running]
    for output, code in outputs:
        if code:
            raise RuntimeError(f"the simulated device cannot be compiled:\n{output}")
