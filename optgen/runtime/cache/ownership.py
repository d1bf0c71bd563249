"""Check that only this user can write to the cache: code from there runs with the user's rights.

A path is trusted if only this user and the system's users can change the file or folder at its end:
they own every folder and link on the way, and nobody else may write to these folders. In a folder
with the sticky bit, such as /tmp, others can add entries but cannot replace ours.
"""

import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_LINKS = 40  # the limit of Linux


def untrusted(folder: Path) -> str:
    """Return the reason why a folder is not trusted; "" if it is."""
    if not hasattr(os, "geteuid"):
        return ""
    *ancestors, last = _path_components(folder.absolute())
    faults = ((path, fault(path.lstat(), ancestor=True)) for path in ancestors)
    for path, reason in (*faults, (last, fault(last.lstat()))):
        if reason:
            return f"{path} {reason}"
    return ""


def fault(status: os.stat_result, *, ancestor: bool = False) -> str:
    """Return who else could change a file or a folder, by its status; "" if nobody could.

    For an ancestor of a path, only the renaming and replacing of its entries counts.
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
    """Return this user and the users who could replace Python itself.

    In some containers, `/` does not belong to user 0.
    """
    return {os.geteuid(), 0, os.stat("/").st_uid}


@cache
def _is_private(group: int) -> bool:
    """Tell whether this user is the only member of a group.

    Systems with the umask 002 make such a group for each user.
    """
    try:
        import grp
        import pwd

        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    alone = set(entry.gr_mem) <= {user.pw_name}
    return alone and (user.pw_gid, user.pw_name) == (group, entry.gr_name)


def _path_components(path: Path) -> Iterator[Path]:
    """Yield every folder and link on the way to a path, as the system follows them, and its end."""
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
