"""Checks that only this user can write to the cache: code from there runs with the user's rights.

A path is trusted if only this user and the system's own can change what stands at its end: they own
every folder and link on the way to it, and nobody else may write to these folders. In a folder with
the sticky bit, such as /tmp, others can add entries but not replace ours.
"""

import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_LINKS = 40  # as many as Linux follows


def untrusted(folder: Path) -> str:
    """Say why a folder is not trusted; nothing if it is."""
    if not hasattr(os, "geteuid"):
        return ""
    *ancestors, last = _steps_to(folder.absolute())
    found = ((path, fault(path.lstat(), ancestor=True)) for path in ancestors)
    for path, reason in (*found, (last, fault(last.lstat()))):
        if reason:
            return f"{path} {reason}"
    return ""


def fault(status: os.stat_result, *, ancestor: bool = False) -> str:
    """Say who else could change a file or a folder, by its facts; nothing if nobody could.

    Of an ancestor only renaming and replacing what it holds counts.
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
    """This user, and those who could replace Python itself; in some containers `/` is not 0's."""
    return {os.geteuid(), 0, os.stat("/").st_uid}


@cache
def _is_private(group: int) -> bool:
    """Tell whether a group is this user's alone, as made for each where the umask is 002."""
    try:
        import grp
        import pwd

        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    alone = set(entry.gr_mem) <= {user.pw_name}
    return alone and (user.pw_gid, user.pw_name) == (group, entry.gr_name)


def _steps_to(path: Path) -> Iterator[Path]:
    """Every folder and link that leads to a path, as the system follows them; the folder last."""
    at, rest, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    yield at
    while rest:
        part = rest.pop()
        at = at.parent if part == ".." else at / part
        yield at
        if at.is_symlink():
            links += 1
            if links > _LINKS:
                raise OSError(f"too many links on the way to {path}")
            target = Path(os.readlink(at))
            at = Path(target.anchor) if target.anchor else at.parent
            rest += reversed(target.parts[1:] if target.anchor else target.parts)
            if not rest:
                yield at
