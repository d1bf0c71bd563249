"""One process builds a library while the others of its machine wait for it.

Nothing depends on the lock: whoever cannot have it builds as well, and the last to finish moves its
library over the others'. So it may be given up at any time, and nothing hangs: the system frees it
when its process dies, and one that is kept all the same, by a process that was stopped or a child
forked in the meantime, is waited for so long and no longer. It lies where temporary files do, not
beside the library: on some networks' file systems merely to ask for a lock hangs.
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

_PATIENCE = 30.0  # seconds; a build takes about one
_PAUSE = 0.005


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes and threads, for a while, from what they do about a path in here."""
    lock = _lock_of(path)
    held = _lock(lock)
    try:
        yield
    finally:
        if held is not None:
            with suppress(OSError):
                lock.unlink()  # those who wait have it open
            fcntl.flock(held, fcntl.LOCK_UN)  # a forked child's copy of it may stay open
            os.close(held)


def _lock_of(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"optgen-{name}.lock"


def _lock(lock: Path) -> int | None:
    """A descriptor of the locked file; None where it cannot be had, or not in time.

    Another user's is left alone: who holds it need not be one that builds.
    """
    if os.name != "posix":
        return None
    try:
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # read-only
        return None
    locked = False
    try:
        locked = os.fstat(held).st_uid == os.geteuid() and _wait(held)
    finally:
        if not locked:
            os.close(held)
    return held if locked else None


def _wait(held: int) -> bool:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks
            break
    return False
