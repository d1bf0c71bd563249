"""The cache of compiled libraries: any number of processes may use it, and one builds for all.

A library is built in a folder of its own and moved into place whole, so a process killed at any
moment leaves at worst that folder behind. Beside each library stands its SHA-256, written first and
checked before every load: opening a damaged library kills a process, and no `try` helps.
"""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from optgen.runtime.cache import files
from optgen.runtime.cache.folders import folders
from optgen.runtime.fused_cpu.toolchain import build_log, compiler
from optgen.runtime.fused_cpu.toolchain.compiler import CompileError, RefusedError
from optgen.runtime.fused_cpu.toolchain.file_lock import alone

_ABANDONED = 24 * 3600.0  # seconds: a build folder older than this was left by a killed process


class NoCompilerError(RuntimeError):
    """There is neither a compiler nor a cached build."""


def library(name: str, source: str) -> Path:
    """The path of a whole library built from a source text, building it if there is none yet."""
    command = compiler.find()
    file = _file(command, name, source)
    failed = []
    for folder in folders():
        for path in _whole(folder, file):
            return path
        if command is None:
            break
        try:
            return _built_once(command, source, folder / file)
        except OSError as error:  # read-only, full, or gone in the meantime
            failed.append(f"{folder}: {error.strerror or error}")
    if command is None:
        raise NoCompilerError(compiler.absence())
    raise CompileError(
        f"no folder takes what is compiled ({'; '.join(failed) or 'none is trusted'}): make room, "
        "or set OPTGEN_CACHE_DIR or TMPDIR to a folder that can be written to"
    )


def built(name: str, source: str) -> Path | None:
    """The library of a source text, if it is in the folder that is looked at first."""
    first, file = islice(folders(), 1), _file(compiler.find(), name, source)
    return next((path for each in first for path in _whole(each, file)), None)


def _file(command: list[str] | None, name: str, source: str) -> str:
    """What its file is called; with no compiler, a pattern for those that any has built."""
    made_by = "*" if command is None else _digest(compiler.identity(command))
    made_from = _digest(source, compiler.processor(), str(compiler.FLAG_SETS))
    return f"{name}-{made_from}-{made_by}.so"


def _whole(folder: Path, file: str) -> Iterator[Path]:
    return filter(is_whole, sorted(folder.glob(file)))


def is_whole(path: Path) -> bool:
    """Tell whether a library is there and is what its checksum says."""
    try:
        expected = files.read(checksum_of(path)).decode()
        return _sha256(files.read(path)) == expected
    except (OSError, UnicodeDecodeError):
        return False


def checksum_of(path: Path) -> Path:
    """The file that holds a library's checksum."""
    return path.with_name(path.name + ".sha256")


def _built_once(command: list[str], source: str, path: Path) -> Path:
    with alone(path):
        return path if is_whole(path) else _build(command, source, path)


def _build(command: list[str], source: str, path: Path) -> Path:
    _sweep(path.parent)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as name:
        folder = Path(name)
        text, built, checksum = folder / "fused_cpu.cpp", folder / "built.so", folder / "sha256"
        text.write_text(source)
        try:
            compiler.build(command, text, built)
        except RefusedError as refused:
            log = build_log.keep(path, refused.log, source)
            capable = compiler.builds_anything(command, folder)
            raise build_log.explained(command, path, refused.log, log, capable) from None
        checksum.write_text(_sha256(built.read_bytes()))
        files.move(checksum, checksum_of(path))
        files.move(built, path)
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


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
