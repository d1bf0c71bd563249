"""Check that only this user can write to the cache: the code in it runs with the user's rights.

A path is trusted if this user or a system user owns every folder and link on the way, and nobody
else may write to these folders. Then nobody else can change the file or folder at the end of the
path. In a folder with the sticky bit, such as /tmp, others can add entries but cannot replace ours.
"""

import os
import stat
from collections.abc import Iterator
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
