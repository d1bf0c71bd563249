"""Import a package from texts in memory, even if its files have changed since they were read.

The modules have the paths of the files that the texts were read from. So tracebacks, debuggers,
`inspect.getsource` and Triton find the source. If a file is gone, the loader gives them its text
from memory.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

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
