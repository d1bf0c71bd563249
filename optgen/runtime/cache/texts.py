"""Generated texts in the cache: read, write and import them.

A folder holds the texts of one spec, and a file with their digest and their names, written last:
the checksum proves them complete and unaltered. The programs of an optimizer have folders inside
this folder. Nothing else in the folder is read: no bytecode, and no module that somebody added.

A package is imported from the texts in memory, even if its files have changed since they were read.
The modules have the paths of the files. So tracebacks, debuggers, `inspect.getsource` and Triton
find the source. If a file is gone, the loader gives them its text from memory.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from optgen.runtime.cache import files
from optgen.runtime.cache.files import folders, make, warn_if_lost, why_changeable

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


_SearchPath = Sequence[str] | None


def import_package(name: str, folder: Path, texts: Mapping[str, str]) -> ModuleType:
    """Import a package of this name from the texts of its files; a folder in it is a subpackage.

    The keys of `texts` are file paths inside `folder`.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    loaders = {name: _Loader(name, folder, texts)}
    for inner in {path.partition("/")[0] for path in texts if "/" in path}:
        prefix = f"{inner}/"
        inner_texts = {
            path.removeprefix(prefix): text
            for path, text in texts.items()
            if path.startswith(prefix)
        }
        loaders[f"{name}.{inner}"] = _Loader(f"{name}.{inner}", folder / inner, inner_texts)
    _packages.update(loaders)
    try:
        return importlib.import_module(name)
    except BaseException:
        for each in loaders:
            del _packages[each]
        raise


class _Loader(SourceLoader):
    """Loads a package from texts; keeps no bytecode, since texts have no modification times."""

    def __init__(self, package: str, folder: Path, texts: Mapping[str, str]) -> None:
        self._package, self._folder, self._texts = package, folder, texts

    def file_name(self, module: str) -> str:
        """Return the name of a module's file."""
        return f"{module.removeprefix(self._package).removeprefix('.') or '__init__'}.py"

    def has_text(self, module: str) -> bool:
        """Tell whether there is a text for a module."""
        return self.file_name(module) in self._texts

    def get_filename(self, fullname: str) -> str:
        return str(self._folder / self.file_name(fullname))

    def get_data(self, path: str | bytes) -> bytes:
        """Return the text of a module's file, or of another file of the package."""
        file = Path(str(path))
        if file.parent != self._folder or file.name not in self._texts:
            raise FileNotFoundError(2, "no such text", str(path))
        return self._texts[file.name].encode()


class _Finder(MetaPathFinder):
    """Finds the packages that were imported from texts, and their modules."""

    def find_spec(
        self, fullname: str, path: _SearchPath = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = _packages.get(fullname) or _packages.get(fullname.rpartition(".")[0])
        if loader is None or not loader.has_text(fullname):
            return None
        spec = ModuleSpec(
            fullname,
            loader,
            origin=loader.get_filename(fullname),
            is_package=fullname in _packages,  # its `__path__` stays empty: no folder is searched
        )
        spec.has_location = True
        return spec


_packages: dict[str, _Loader] = {}
_finder = _Finder()
