"""Compile a source text and cache the library; any number of processes may share the cache.

Folders with prebuilt libraries come before the cache: those that `$OPTGEN_KERNELS` names, and those
that generated packages carry. A prebuilt library may be of another machine, for a level of
processors.

A library is built in a temporary folder, checked there, and moved into place as a whole. If a
process is killed, it leaves at most that folder and a checksum behind. The SHA-256 of each library
is stored beside the library. The checksum is written first and checked before every load: a damaged
library would crash the process that opens it.
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from optgen.runtime.cache import files
from optgen.runtime.cache.files import exclusive, folders, is_temporary, warn_if_lost
from optgen.runtime.toolchain import compiler, processors
from optgen.runtime.toolchain.compiler import CompileError, RefusedError, with_digest

_ABANDONED_AGE = 24 * 3600.0  # seconds; a killed process left what is older


class NoCompilerError(RuntimeError):
    """Error for a library that is not cached, on a machine without a compiler."""


def library(name: str, source: str) -> Path:
    """Return the path of the library of a source text; build the library if it is not cached."""
    if path := _find_prebuilt(name, source):
        return path
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
        raise NoCompilerError(compiler.why_missing() + _why_not_prebuilt(name))
    raise CompileError(
        f"no folder can store a compiled library ({'; '.join(failures) or 'none is trusted'}): "
        "make room, or set OPTGEN_CACHE_DIR or TMPDIR to a folder that can be written to"
    )


def find_built(name: str, source: str) -> Path | None:
    """Return the library of a source text if it is prebuilt, or in the first cache folder."""
    if path := _find_prebuilt(name, source):
        return path
    first_folder, file = islice(folders(), 1), _file_name(compiler.find(), name, source)
    return next((path for folder in first_folder for path in _intact_libraries(folder, file)), None)


def _file_name(command: list[str] | None, name: str, source: str) -> str:
    """Return a library's file name; without a compiler, a pattern that matches any compiler's."""
    compiler_digest = "*" if command is None else _digest(compiler.identity(command))
    source_digest = _digest(with_digest(source), processors.description(), str(compiler.FLAG_SETS))
    return f"{name}-{source_digest}-{compiler_digest}.so"


_FOLDERS_VARIABLE = "OPTGEN_KERNELS"
_package_folders: dict[Path, None] = {}


def look_in(folder: Path) -> None:
    """Look for prebuilt libraries in this folder too, if it exists."""
    if folder.is_dir():
        _package_folders[folder] = None


def prebuild(name: str, source: str, level: processors.Level, folder: Path) -> Path:
    """Build a library for a level of processors into a folder, unless it is there; return its path.

    Raises:
        NoCompilerError: This machine has no compiler.
        CompileError: The compiler made no library.
        OSError: The folder cannot be written to.
    """
    command = compiler.find()
    if command is None:
        raise NoCompilerError(compiler.why_missing())
    path = folder / _prebuilt_name(name, source, level)
    with exclusive(path):
        flag_sets = compiler.flag_sets_for(level)
        return path if is_intact(path) else _build(command, source, path, flag_sets)


def _find_prebuilt(name: str, source: str) -> Path | None:
    if not (folders := _prebuilt_folders()):
        return None
    names = [_prebuilt_name(name, source, level) for level in processors.levels_here()]
    paths = (folder / file for folder in folders for file in names)
    return next(filter(is_intact, paths), None)


def _prebuilt_folders() -> list[Path]:
    paths = [*_named_folders(), *_package_folders]
    return [path for path in paths if files.is_trusted(path, _FOLDERS_VARIABLE)]


def _named_folders() -> list[Path]:
    names = os.environ.get(_FOLDERS_VARIABLE, "").split(os.pathsep)
    return [Path(name).expanduser().absolute() for name in names if name]


def _prebuilt_name(name: str, source: str, level: processors.Level) -> str:
    """Return a file name. Comments do not count: they name the file of a spec."""
    return f"{name}-{_digest(_COMMENT_LINE.sub('', source))}-{processors.tag(level)}.so"


_COMMENT_LINE = re.compile(r"^\s*//.*\n", re.MULTILINE)


def _why_not_prebuilt(name: str) -> str:
    """Return the other way out than a compiler, and why it was not taken."""
    if compiler.is_windows():
        return ""
    for folder in _named_folders():
        if not folder.is_dir():
            return f"; and {_FOLDERS_VARIABLE} names {folder}, which is no folder"
    if _prebuilt_folders():
        here = processors.levels_here()
        best = next(each.name for each in processors.SHARED_LEVELS if each in here)
        return (
            f"; and no folder of prebuilt kernels has {name} of this version of optgen, for these "
            f"dtypes and for a processor of {best}: build it with `optgen build-kernels`"
        )
    return (
        f"; or build its kernels on another machine with `optgen build-kernels`, and set "
        f"{_FOLDERS_VARIABLE} to their folder"
    )


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


def _build(
    command: list[str],
    source: str,
    path: Path,
    flag_sets: compiler.FlagSets = compiler.FLAG_SETS,
) -> Path:
    """Build a library, and move it and its checksum into place."""
    _remove_abandoned(path.parent)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as name:
        folder = Path(name)
        checksum_path = folder / "sha256"
        try:
            library_path = compiler.build_checked(command, source, folder, flag_sets)
        except RefusedError as refused:
            log_path = save_log(path, refused.log, source)
            compiler_works = compiler.builds_anything(command, folder)
            raise compile_error(command, path, refused.log, log_path, compiler_works) from None
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


_ERROR_LINE = re.compile(r"^.*\berror\b.*$", re.MULTILINE | re.IGNORECASE)
_COMPILER_CRASH = re.compile("internal compiler error|Segmentation fault|frontend command failed")
_MAX_LINES = 10  # of compiler output in a message: C++ templates cause very long output


def save_log(library: Path, log: str, source: str) -> Path | None:
    """Write the compiler's commands and output to a log, and the source beside the log.

    Returns:
        The path of the log; None if the log cannot be written. The log lies in the library's folder
        if possible, but among temporary files if that folder is deleted when the process ends.
    """
    for path in _log_paths(library):
        with suppress(OSError):
            source_path = path.with_suffix(".cpp")
            files.write(source_path, source.encode())
            files.write(path, os.fsencode(f"The source: {source_path}\n\n{log}"))
            return path
    return None


def _log_paths(library: Path) -> list[Path]:
    path = library.with_suffix(".log")
    temporary = Path(tempfile.gettempdir(), f"optgen-{os.getpid()}-{path.name}")
    return [temporary] if is_temporary(library.parent) else [path, temporary]


def compile_error(
    command: list[str], library: Path, log: str, log_path: Path | None, compiler_works: bool
) -> CompileError:
    """Return an error that says whether the compiler or optgen is at fault, and the way out.

    `compiler_works` tells whether the compiler can build a small program.
    """
    compiler, rule_name = shlex.join(command), library.name.split("-")[0]
    log_note = f" (log: {log_path})" if log_path else ""
    if _COMPILER_CRASH.search(log):
        first_line = (
            f"{compiler} crashed on the source that optgen generated for `{rule_name}`, a defect "
            f"of the compiler: set CXX to another compiler or version{log_note}"
        )
    elif compiler_works:
        first_line = (
            f"{compiler} builds other C++17 programs but not the source that optgen generated for "
            f"`{rule_name}`, a defect of optgen: report it with the log and the spec{log_note}"
        )
    else:
        first_line = (
            f"{compiler} cannot build even a small C++17 program: set CXX to a compiler that "
            f"knows C++17{log_note}"
        )
    return CompileError("\n".join([first_line, *_first_errors(log)]))


def _first_errors(log: str) -> list[str]:
    """Return the first lines with errors; the last lines if no line names an error."""
    errors = list(dict.fromkeys(_ERROR_LINE.findall(log)))
    return errors[:_MAX_LINES] or log.strip().splitlines()[-_MAX_LINES:]


_INCLUDE = re.compile(
    r'^#include "optgen/runtime/((?:fused_cpu/include|reader)/\w+\.h)"\n', re.MULTILINE
)
_FOLDER = Path(__file__).parents[1]


def inline_includes(source: str) -> str:
    """Return a source with optgen's headers in place of its includes, each header once."""
    pasted: set[str] = set()

    def paste(include: re.Match[str]) -> str:
        name = include[1]
        if name in pasted:
            return ""
        pasted.add(name)
        return _INCLUDE.sub(paste, (_FOLDER / name).read_text())

    return _INCLUDE.sub(paste, source)
