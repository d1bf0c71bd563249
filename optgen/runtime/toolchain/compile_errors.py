"""Save the log of a failed build, and create its error message."""

import os
import re
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from optgen.runtime.cache import files
from optgen.runtime.cache.folders import is_temporary
from optgen.runtime.toolchain.compiler import CompileError

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
