"""Files of the cache: the folders that hold them, whom these folders are trusted to, and locks.

The code in the cache runs with the user's rights. A path is trusted if this user or a system user
owns every folder and link on the way, and nobody else may write to these folders. Then nobody else
can change the file or folder at the end of the path. In a folder with the sticky bit, such as /tmp,
others can add entries but cannot replace ours. Files are written so that they survive a power loss.

A lock lets one process build a library while others on its machine wait. Nothing depends on the
lock: a process that cannot get the lock builds the library as well, and the last process to finish
replaces the others' library. So a process may stop waiting at any time. Nothing hangs: the system
frees the lock when its process dies, and the wait has a time limit, because a stopped process or a
forked child may still hold the lock. The lock file lies among temporary files, not beside the
library: on some network file systems a request for a lock hangs.
"""

import atexit
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_MAX_LINKS = 40  # Linux follows as many on one path


def why_untrusted(folder: Path) -> str:
    """Say why a folder is not trusted; "" if it is."""
    if not hasattr(os, "geteuid"):
        return ""
    *ancestors, last = _path_components(folder.absolute())
    reasons = ((path, why_changeable(path.lstat(), ancestor=True)) for path in ancestors)
    for path, reason in (*reasons, (last, why_changeable(last.lstat()))):
        if reason:
            return f"{path} {reason}"
    return ""


def why_changeable(status: os.stat_result, *, ancestor: bool = False) -> str:
    """Say why other users could change a file or folder with this status; "" if they could not.

    In an `ancestor` of a path, others may add entries, but may not rename or replace any.
    """
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in _trusted_users():
        return f"belongs to user {status.st_uid}"
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (ancestor and mode & stat.S_ISVTX):
        return ""
    if mode & stat.S_IWOTH:
        return "may be written to by everybody"
    if mode & stat.S_IWGRP and not (ancestor and _is_private(status.st_gid)):
        return "may be written to by its group"
    return ""


def _trusted_users() -> set[int]:
    """Return the ids of this user, root and the owner of `/`: they could replace Python itself.

    In some containers, root does not own `/`.
    """
    return {os.geteuid(), 0, os.stat("/").st_uid}


@cache
def _is_private(group_id: int) -> bool:
    """Tell whether this user is the only member of a group.

    Systems with the umask 002 make such a group for each user.
    """
    try:
        import grp
        import pwd

        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except (ImportError, KeyError):
        return False
    has_no_others = set(entry.gr_mem) <= {user.pw_name}
    return has_no_others and (user.pw_gid, user.pw_name) == (group_id, entry.gr_name)


def _path_components(path: Path) -> Iterator[Path]:
    """Yield every folder and link that the system passes on the way to a path, and its end last."""
    current, link_count = Path(path.anchor), 0
    remaining_parts = list(reversed(path.parts[1:]))  # the next part is the last of the list
    yield current
    while remaining_parts:
        part = remaining_parts.pop()
        current = current.parent if part == ".." else current / part
        yield current
        if current.is_symlink():
            link_count += 1
            if link_count > _MAX_LINKS:
                raise OSError(f"too many links on the way to {path}")
            target = Path(os.readlink(current))
            current = Path(target.anchor) if target.anchor else current.parent
            remaining_parts += reversed(target.parts[1:] if target.anchor else target.parts)
            if not remaining_parts:
                yield current


_warned_reasons: set[str] = set()
_LOST = "built code is lost when the process ends"


def folders() -> Iterator[Path]:
    """Yield the folders to read from and to write to; skip a folder that other users can change.

    The cache folder comes first, then a temporary folder, which is removed when the process ends.
    """
    cache_folder = _cache_folder()
    if cache_folder and is_trusted(cache_folder, "OPTGEN_CACHE_DIR"):
        yield cache_folder
    temporary = _temporary_folder(os.getpid())
    if is_trusted(temporary, "TMPDIR"):
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


def is_trusted(folder: Path, env_variable: str) -> bool:
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


_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_FILE_MODE = 0o644  # independent of the umask: `read` does not trust a group-writable file


def read(path: Path) -> bytes:
    """Return the contents of a file.

    Raises:
        OSError: the path is a link or no regular file, or others may write to the file.
    """
    with open(os.open(path, _READ_FLAGS | getattr(os, "O_BINARY", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        if reason := why_changeable(status):
            raise PermissionError(errno.EPERM, reason, str(path))
        return file.read()


def write(path: Path, data: bytes) -> None:
    """Replace a file atomically: after a power loss, the old or the new file is there, complete."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".build-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        move(Path(temporary), path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def move(source: Path, target: Path) -> None:
    """Move a file into place after its contents are synced to the disk."""
    source.chmod(_FILE_MODE)
    _sync(source)
    os.replace(source, target)
    if os.name == "posix":
        _sync(target.parent)


def _sync(path: Path) -> None:
    """Sync a file or a folder to the disk, if the file system can."""
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # fsync is not supported
            raise
    finally:
        os.close(descriptor)


if os.name == "posix":
    import fcntl

_WAIT_LIMIT = 30.0  # seconds; a build takes about one second
_PAUSE = 0.005  # seconds


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Let one process or thread at a time run the `with` block; the others wait a while."""
    lock_path = _lock_path(path)
    descriptor = _acquire(lock_path)
    try:
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):
                lock_path.unlink()  # safe: waiting processes have this file open
            # Closing does not unlock while a forked child has a copy of the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock_path(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"optgen-{name}.lock"


def _acquire(lock_path: Path) -> int | None:
    """Lock a file and return its descriptor; None if that is impossible, or takes too long.

    Do not wait for another user's lock file: its holder may hold it for any other reason.
    """
    if os.name != "posix":
        return None
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # such as a read-only folder
        return None
    is_locked = False
    try:
        is_locked = os.fstat(descriptor).st_uid == os.geteuid() and _wait(descriptor)
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor if is_locked else None


def _wait(descriptor: int) -> bool:
    """Wait for the lock; tell whether this process got it in time."""
    end = time.monotonic() + _WAIT_LIMIT
    while time.monotonic() < end:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks
            break
    return False
