"""Find the folders of compiled libraries and generated texts."""

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from optgen.runtime.cache.ownership import why_untrusted

_warned_reasons: set[str] = set()
_LOST = "built code is lost when the process ends"


def folders() -> Iterator[Path]:
    """Yield the folders to read from and to write to; skip a folder that other users can change.

    The cache folder comes first, then a temporary folder, which is removed when the process ends.
    """
    cache_folder = _cache_folder()
    if cache_folder and _is_trusted(cache_folder, "OPTGEN_CACHE_DIR"):
        yield cache_folder
    temporary = _temporary_folder(os.getpid())
    if _is_trusted(temporary, "TMPDIR"):
        yield temporary


def _cache_folder() -> Path | None:
    """Return the cache folder; None if it does not exist and cannot be made."""
    try:
        folder = _configured_folder()
        make(folder)
        return folder
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None


def warn_if_lost(folder: Path, failures: Sequence[str]) -> None:
    """Warn once if code was built into the temporary folder, since no other folder can keep it.

    `failures` say why other folders could not be written to.
    """
    if not is_temporary(folder) or _LOST in _warned_reasons:
        return
    reason = next(iter(failures), "")
    try:
        make(_configured_folder())
    except (OSError, RuntimeError) as error:
        reason = str(error)
    if reason:  # else the cache folder is not trusted, which `folders` has said
        _warned_reasons.add(_LOST)
        warnings.warn(
            f"optgen cannot keep the code that it builds ({reason}), so each process builds it "
            "again: set OPTGEN_CACHE_DIR to a folder that can be written to",
            stacklevel=2,
        )


def is_temporary(folder: Path) -> bool:
    """Tell whether a folder is the temporary one, which is removed when this process ends."""
    return folder == _temporary_folder(os.getpid())


def make(folder: Path) -> None:
    """Make a folder and its missing parents, for this user only."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _configured_folder() -> Path:
    if folder := os.environ.get("OPTGEN_CACHE_DIR"):
        return Path(folder).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "optgen"


def _is_trusted(folder: Path, env_variable: str) -> bool:
    """Tell whether only this user can change a folder; warn once if others can."""
    try:
        reason = why_untrusted(folder)
    except OSError:  # it was removed, or a folder on its path cannot be searched
        return False
    if reason and reason not in _warned_reasons:
        _warned_reasons.add(reason)
        warnings.warn(
            f"optgen neither keeps nor runs code in {folder}, since {reason}: change that with "
            f"chmod or chown, or set {env_variable} to a folder that only you can change",
            stacklevel=2,
        )
    return not reason


@cache
def _temporary_folder(pid: int) -> Path:
    """Return the private temporary folder of the process `pid`; make it on the first call.

    A forked child makes a folder of its own, since each process removes its own folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="optgen-"))
    atexit.register(_remove, folder, pid)
    return folder


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
