"""Lock a path, so that one process builds a library while others on its machine wait.

Nothing depends on the lock: a process that cannot get the lock builds the library as well, and the
last process to finish replaces the others' library. So a process may stop waiting at any time.
Nothing hangs: the system frees the lock when its process dies, and the wait has a time limit,
because a stopped process or a forked child may still hold the lock. The lock file lies among
temporary files, not beside the library: on some network file systems a request for a lock hangs.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
