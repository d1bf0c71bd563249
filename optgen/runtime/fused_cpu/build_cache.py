"""The cache of compiled libraries: any number of processes may use it, and one builds for all.

A library is built in a folder of its own and moved into place whole, so a process killed at any
moment leaves at worst that folder behind. Beside each library stands its SHA-256, written first and
checked before every load: opening a damaged library kills a process, and no `try` helps.
"""

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from optgen.runtime.fused_cpu import compiler
from optgen.runtime.fused_cpu.build_lock import alone

_ABANDONED = 24 * 3600.0  # seconds: a build folder older than this was left by a killed process


class NoCompilerError(RuntimeError):
    """There is neither a compiler nor a cached build."""


def library(name: str, source: str) -> Path:
    """The path of a whole library built from a source text, building it if there is none yet."""
    command = compiler.find()
    file = _file(command, name, source)
    for folder in folders():
        for path in _whole(folder, file):
            return path
        if command is None:
            break
        try:
            return _built_once(command, source, folder / file)
        except OSError:
            continue  # read-only, full, or gone in the meantime
    raise NoCompilerError(f"no C++ compiler was found: {compiler.INSTALL}")


def built(name: str, source: str) -> Path | None:
    """The library of a source text, if it is in the folder that is looked at first."""
    return next(_whole(next(folders()), _file(compiler.find(), name, source)), None)


def _file(command: list[str] | None, name: str, source: str) -> str:
    """What its file is called; with no compiler, a pattern for those that any has built."""
    made_by = "*" if command is None else _digest(compiler.identity(command))
    made_from = _digest(source, compiler.processor(), str(compiler.FLAG_SETS))
    return f"{name}-{made_from}-{made_by}.so"


def _whole(folder: Path, file: str) -> Iterator[Path]:
    return filter(is_whole, sorted(folder.glob(file)))


def folders() -> Iterator[Path]:
    """Where to look and to write: the cache folder, unless others may write to it too; then one
    that ends with the process."""
    try:
        folder = _chosen_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = _is_ours(folder)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        ours = False
    if ours:
        yield folder
    yield _temporary_folder(os.getpid())


def is_whole(path: Path) -> bool:
    """Tell whether a library is there and is what its checksum says."""
    try:
        expected = checksum_of(path).read_text()
        return hashlib.sha256(path.read_bytes()).hexdigest() == expected
    except (OSError, UnicodeDecodeError):
        return False


def checksum_of(path: Path) -> Path:
    """The file that holds a library's checksum."""
    return path.with_name(path.name + ".sha256")


def _chosen_folder() -> Path:
    if chosen := os.environ.get("OPTGEN_CACHE_DIR"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "optgen"


def _is_ours(folder: Path) -> bool:
    """Others could plant a library in a folder that is theirs or that everybody may write to."""
    if not hasattr(os, "geteuid"):
        return True
    facts = folder.stat()
    return facts.st_uid == os.geteuid() and not facts.st_mode & stat.S_IWOTH


@cache
def _temporary_folder(pid: int) -> Path:
    """A private folder of this process; a forked child makes its own, as each removes its own."""
    folder = Path(tempfile.mkdtemp(prefix="optgen-"))
    atexit.register(_remove, folder, pid)
    return folder


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _built_once(command: list[str], source: str, path: Path) -> Path:
    with alone(path):
        return path if is_whole(path) else _build(command, source, path)


def _build(command: list[str], source: str, path: Path) -> Path:
    _sweep(path.parent)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as name:
        folder = Path(name)
        text, built, checksum = folder / "fused_cpu.cpp", folder / "built.so", folder / "sha256"
        text.write_text(source)
        compiler.build(command, text, built)
        checksum.write_text(hashlib.sha256(built.read_bytes()).hexdigest())
        os.replace(checksum, checksum_of(path))
        os.replace(built, path)
    return path


def _sweep(folder: Path) -> None:
    """Remove what killed builds left behind long ago."""
    for left in folder.glob(".build-*"):
        try:
            abandoned = time.time() - left.stat().st_mtime > _ABANDONED
        except OSError:
            continue  # another process was faster
        if abandoned:
            shutil.rmtree(left, ignore_errors=True)


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
