"""Write cache files that survive a power loss; read only files that others cannot change."""

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from optgen.runtime.cache.ownership import why_changeable

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
