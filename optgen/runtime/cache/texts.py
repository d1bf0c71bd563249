"""Read and write generated texts in the cache; a checksum proves them complete and unaltered.

A folder holds the texts of one spec, and a file with their digest and their names, written last.
The programs of an optimizer have folders inside this folder. Nothing else in the folder is read: no
bytecode, and no module that somebody added.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from optgen.runtime.cache import files
from optgen.runtime.cache.folders import folders, make, warn_if_lost
from optgen.runtime.cache.ownership import why_changeable

Texts = Mapping[str, str]  # by file path inside the folder
_CHECKSUM = "sha256"


def texts_of(key: str, generate: Callable[[], Texts]) -> tuple[Path, Texts]:
    """Return the folder and the texts for a key: cached texts, or new ones, which are then cached.

    The key names the folder, and changes with all that the texts depend on.

    If no folder can be written to, the texts are still usable from memory.
    """
    tried_folders, failures, texts = list[Path](), list[str](), None
    for cache_folder in folders():
        folder = cache_folder / "specs" / key
        tried_folders.append(folder)
        if cached := read_texts(folder):
            return folder, cached
        texts = texts or generate()
        try:
            write_texts(folder, texts)
            warn_if_lost(cache_folder, failures)
            return folder, texts
        except OSError as error:  # a folder that is read-only or full, or belongs to others
            failures.append(f"{cache_folder}: {error.strerror or error}")
    return (tried_folders or [Path("specs", key)])[0], texts or generate()


def read_texts(folder: Path) -> Texts | None:
    """Return the texts of a folder; None if one is missing, altered, or writable by others."""
    try:
        _check_folder(folder)
        digest, *names = _read(folder / _CHECKSUM).split("\n")
        for inner in _inner_folders(folder, names):
            _check_folder(inner)
        texts = {name: _read(folder / name) for name in names}
    except (OSError, ValueError):  # ValueError: no UTF-8, or no valid file name
        return None
    return texts if digest == _digest(texts) else None


def write_texts(folder: Path, texts: Texts) -> None:
    """Write texts, and after them the checksum.

    Several processes may write at once: they write the same contents, each file atomically.
    """
    for each in (folder, *_inner_folders(folder, texts)):
        make(each)
        _check_folder(each)
    for name, text in texts.items():
        files.write(folder / name, text.encode())
    files.write(folder / _CHECKSUM, "\n".join([_digest(texts), *texts]).encode())


def _inner_folders(folder: Path, names: Iterable[str]) -> set[Path]:
    """Return the folders that texts of these names need inside a folder."""
    return {(folder / name).parent for name in names} - {folder}


def _check_folder(folder: Path) -> None:
    """Raise a PermissionError if a folder or its parent is a link, or others may write to it.

    `folders` has checked the cache folder, which is above both.
    """
    for each in (folder.parent, folder):
        status = each.lstat()
        if each.is_symlink() or (reason := why_changeable(status)):
            raise PermissionError(f"{each} {'is a link' if each.is_symlink() else reason}")


def _read(path: Path) -> str:
    return files.read(path).decode()


def _digest(texts: Texts) -> str:
    entries = (f"{len(text)} {name}\n{text}" for name, text in texts.items())
    return hashlib.sha256("".join(entries).encode()).hexdigest()
