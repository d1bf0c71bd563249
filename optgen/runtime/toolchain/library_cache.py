"""Compile a source text and cache the library; any number of processes may share the cache.

A library is built in a temporary folder, checked there, and moved into place as a whole. If a
process is killed, it leaves at most that folder and a checksum behind. The SHA-256 of each library
is stored beside the library. The checksum is written first and checked before every load: a damaged
library would crash the process that opens it.
"""

import hashlib
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from optgen.runtime.cache import files
from optgen.runtime.cache.folders import folders, warn_if_lost
from optgen.runtime.toolchain import compile_errors, compiler
from optgen.runtime.toolchain.compiler import CompileError, RefusedError
from optgen.runtime.toolchain.file_lock import exclusive
from optgen.runtime.toolchain.library_check import with_digest

_ABANDONED_AGE = 24 * 3600.0  # seconds; a killed process left what is older


class NoCompilerError(RuntimeError):
    """Error for a library that is not cached, on a machine without a compiler."""


def library(name: str, source: str) -> Path:
    """Return the path of the library of a source text; build the library if it is not cached."""
    command = compiler.find()
    file = _file_name(command, name, source)
    failures: list[str] = []
    for folder in folders():
        if path := next(_intact_libraries(folder, file), None):
            return path
        if command is None:
            break
        try:
            path = _build_once(command, source, folder / file)
            warn_if_lost(folder, failures)
            return path
        except OSError as error:  # read-only, full, or gone in the meantime
            failures.append(f"{folder}: {error.strerror or error}")
    if command is None:
        raise NoCompilerError(compiler.why_missing())
    raise CompileError(
        f"no folder can store a compiled library ({'; '.join(failures) or 'none is trusted'}): "
        "make room, or set OPTGEN_CACHE_DIR or TMPDIR to a folder that can be written to"
    )


def find_built(name: str, source: str) -> Path | None:
    """Return the library of a source text if it is in the first cache folder; else None."""
    first_folder, file = islice(folders(), 1), _file_name(compiler.find(), name, source)
    return next((path for folder in first_folder for path in _intact_libraries(folder, file)), None)


def _file_name(command: list[str] | None, name: str, source: str) -> str:
    """Return a library's file name; without a compiler, a pattern that matches any compiler's."""
    compiler_digest = "*" if command is None else _digest(compiler.identity(command))
    source_digest = _digest(with_digest(source), compiler.processor(), str(compiler.FLAG_SETS))
    return f"{name}-{source_digest}-{compiler_digest}.so"


def _intact_libraries(folder: Path, name_pattern: str) -> Iterator[Path]:
    """Yield the undamaged libraries of a folder whose names match a pattern, or are equal to it."""
    return filter(is_intact, sorted(folder.glob(name_pattern)))


def is_intact(path: Path) -> bool:
    """Tell whether a library exists and matches its checksum."""
    try:
        expected = files.read(checksum_of(path)).decode()
        return _sha256(files.read(path)) == expected
    except (OSError, UnicodeDecodeError):
        return False


def checksum_of(path: Path) -> Path:
    """Return the path of the file with a library's checksum."""
    return path.with_name(path.name + ".sha256")


def _build_once(command: list[str], source: str, path: Path) -> Path:
    with exclusive(path):
        return path if is_intact(path) else _build(command, source, path)


def _build(command: list[str], source: str, path: Path) -> Path:
    """Build a library, and move it and its checksum into place."""
    _remove_abandoned(path.parent)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as name:
        folder = Path(name)
        checksum_path = folder / "sha256"
        try:
            library_path = compiler.build_checked(command, source, folder)
        except RefusedError as refused:
            log_path = compile_errors.save_log(path, refused.log, source)
            compiler_works = compiler.builds_anything(command, folder)
            raise compile_errors.compile_error(
                command, path, refused.log, log_path, compiler_works
            ) from None
        checksum_path.write_text(_sha256(library_path.read_bytes()))
        files.move(checksum_path, checksum_of(path))
        files.move(library_path, path)
    return path


def _remove_abandoned(folder: Path) -> None:
    """Remove the folders and files that killed builds and writes left behind long ago."""
    for leftover in folder.glob(".build-*"):
        with suppress(OSError):  # another process was faster
            status = leftover.lstat()
            if time.time() - status.st_mtime <= _ABANDONED_AGE:
                continue
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
