"""Generated texts in the cache: as long as a folder's checksum says that they are whole.

A folder holds the texts of one spec, and a file with their digest and their names, written last.
Nothing else in the folder is read: not bytecode, not a module that somebody put beside the others.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from optgen.runtime.cache import files
from optgen.runtime.cache.folders import folders, make
from optgen.runtime.cache.ownership import fault

Texts = Mapping[str, str]
_CHECKSUM = "sha256"


def texts_of(key: str, generate: Callable[[], Texts]) -> tuple[Path, Texts]:
    """Return the texts of a key and where they lie: those kept, or new ones, which are then kept.

    Where no folder takes them the texts serve all the same, from memory.
    """
    tried, texts = [], None
    for cache in folders():
        folder = cache / "specs" / key
        tried.append(folder)
        if found := read_texts(folder):
            return folder, found
        texts = texts or generate()
        with suppress(OSError):  # read-only, full, or of others
            write_texts(folder, texts)
            return folder, texts
    return (tried or [Path("specs", key)])[0], texts or generate()


def read_texts(folder: Path) -> Texts | None:
    """Return the texts of a folder; None if one is missing, altered, or open to others."""
    try:
        _check(folder)
        digest, *names = _read(folder / _CHECKSUM).split("\n")
        texts = {name: _read(folder / name) for name in names}
    except (OSError, ValueError):  # ValueError: what is no text, or no name
        return None
    return texts if digest == _digest(texts) else None


def write_texts(folder: Path, texts: Texts) -> None:
    """Write texts, and the checksum when all of them are there.

    Others that write them at the same time write the same, each file in one step.
    """
    make(folder)
    _check(folder)
    for name, text in texts.items():
        files.write(folder / name, text.encode())
    files.write(folder / _CHECKSUM, "\n".join([_digest(texts), *texts]).encode())


def _check(folder: Path) -> None:
    """Raise if others may write to a folder or to the one it stands in, below the cache's own."""
    for each in (folder.parent, folder):
        facts = each.lstat()
        if each.is_symlink() or (reason := fault(facts)):
            raise PermissionError(f"{each} {'is a link' if each.is_symlink() else reason}")


def _read(path: Path) -> str:
    return files.read(path).decode()


def _digest(texts: Texts) -> str:
    facts = (f"{len(text)} {name}\n{text}" for name, text in texts.items())
    return hashlib.sha256("".join(facts).encode()).hexdigest()
