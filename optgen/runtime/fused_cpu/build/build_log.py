"""The log of a build that failed, and its error message."""

import os
import re
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from optgen.runtime.cache import files
from optgen.runtime.cache.folders import is_temporary
from optgen.runtime.fused_cpu.build.compiler import CompileError

_ERROR = re.compile(r"^.*\berror\b.*$", re.MULTILINE | re.IGNORECASE)
_BROKEN = re.compile("internal compiler error|Segmentation fault|frontend command failed")
_LINES = 10  # of the compiler's own words in a message: templates make walls of them


def keep(library: Path, log: str, source: str) -> Path | None:
    """Write down what a compiler was told and what it said, and keep the source beside it.

    Returns the path of the log: beside where the library would be, or, where that ends with the
    process, among temporary files. None where neither can be written.
    """
    for path in _places(library):
        with suppress(OSError):
            text = path.with_suffix(".cpp")
            files.write(text, source.encode())
            files.write(path, f"The source: {text}\n\n{log}".encode())
            return path
    return None


def _places(library: Path) -> list[Path]:
    path = library.with_suffix(".log")
    elsewhere = Path(tempfile.gettempdir(), f"optgen-{os.getpid()}-{path.name}")
    return [elsewhere] if is_temporary(library.parent) else [path, elsewhere]


def explained(
    command: list[str], library: Path, log: str, kept: Path | None, capable: bool
) -> CompileError:
    """The error that says whose defect it is that a source was refused, and the way out."""
    name, what = shlex.join(command), library.name.split("-")[0]
    where = f" (log: {kept})" if kept else ""
    if _BROKEN.search(log):
        first = (
            f"{name} broke off in what optgen wrote for `{what}`, a defect of the compiler: "
            f"set CXX to another one, or to another version{where}"
        )
    elif capable:
        first = (
            f"{name} builds other C++17 programs but not what optgen wrote for `{what}`, "
            f"a defect of optgen: report it with the log and the spec{where}"
        )
    else:
        first = (
            f"{name} cannot build even a small C++17 program: set CXX to a compiler that "
            f"knows C++17{where}"
        )
    return CompileError("\n".join([first, *_most_telling(log)]))


def _most_telling(log: str) -> list[str]:
    """The first errors among all lines; of other compilers the last lines."""
    errors = list(dict.fromkeys(_ERROR.findall(log)))
    return errors[:_LINES] or log.strip().splitlines()[-_LINES:]
