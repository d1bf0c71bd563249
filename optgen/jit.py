"""Load a spec as an optimizer class, in this process.

The generated text is the same as that of `optgen build`. The cache folder keeps it under a hash of
the spec and of the generator. The text is checked after it is read from the cache, and only the
checked text is imported (docs/decisions/0045-the-cache-is-checked-before-it-runs.md). Tracebacks,
debuggers, `inspect.getsource` and Triton find real files.
"""

from __future__ import annotations

import copyreg
import errno
import functools
import hashlib
import importlib.metadata
import importlib.resources
import os
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from optgen.runtime.cache.texts import import_package, texts_of
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.spec.declare import Spec

if TYPE_CHECKING:
    from optgen.runtime.optimizer import LoadedOptimizer

_GENERATOR_PATHS = ("spec", "ir", "passes", "lowerings", "emit.py", "jit.py")
_loaded_classes: dict[str, type[LoadedOptimizer]] = {}


class LoadedType(type):
    """Metaclass of loaded classes. A loaded class pickles as its spec."""

    spec: Spec


def load(spec: str | os.PathLike[str] | Spec) -> type[LoadedOptimizer]:
    """Make an optimizer class from a spec.

    Args:
        spec: the path of a spec file that holds one optimizer, a name of the catalogue ("adamw"
            or "AdamW"), or the decorated function itself. A loaded class is returned as it is.

    Returns:
        The class. The same text gives the same class while the process runs. The class can be
        pickled, and unpickled where neither the file nor the cache exists.

    Raises:
        SpecError: the spec has a mistake; the message shows the place, a caret and a hint.
        InternalError: a defect of optgen; its cause is chained.
        FileNotFoundError: there is neither a file nor an algorithm of that name.
        TypeError: `spec` is neither a path, a name nor a decorated function.
    """
    if isinstance(spec, LoadedType) and "spec" in vars(spec):
        return cast("type[LoadedOptimizer]", spec)  # a notebook cell `Mine = load(Mine)` ran again
    if not isinstance(spec, str | os.PathLike | Spec):
        raise TypeError(
            "load takes the path of a spec file or a function decorated with @optimizer(…), "
            f"not {spec!r}"
        )
    spec = named_spec(spec)
    key = _cache_key(spec)
    if key not in _loaded_classes:
        _loaded_classes[key] = _make_loaded_class(_import_generated(spec, key), spec)
    return _loaded_classes[key]


def named_spec(spec: str | os.PathLike[str] | Spec) -> Spec:
    """Return the spec of a file, of a name of the catalogue, or a spec as it is.

    Raises:
        FileNotFoundError: there is neither a file nor an algorithm of that name.
    """
    return spec if isinstance(spec, Spec) else _read_spec_file(_find_file(spec))


def _find_file(spec: str | os.PathLike[str]) -> Path:
    """Return the spec file for a path or for a name of the catalogue."""
    path = Path(spec)
    if path.suffix == ".py" or path.is_file():
        return path
    from optgen.spec.errors import did_you_mean
    from optgen.spec.source import catalogue_name, module_name

    spec_files = {path.stem: path for path in sorted(data_folder("specs").glob("[!_]*.py"))}
    name = catalogue_name(str(spec), spec_files)
    if name is None:
        hint = did_you_mean(module_name(str(spec)), spec_files, ", ".join(spec_files))
        message = f"neither a spec file nor a name of the catalogue ({hint})"
        if (file := path.with_name(f"{path.name}.py")).is_file():
            message = f"no name of the catalogue: did you mean the file {str(file)!r}?"
        raise FileNotFoundError(errno.ENOENT, message, str(spec))
    return spec_files[name]


def _read_spec_file(path: Path) -> Spec:
    from optgen.spec.source import read_file

    return Spec(path.stem, read_file(path), str(path), 1)


def _cache_key(spec: Spec) -> str:
    """Return the key of a spec in the cache: a digest of the generator, the name and the text."""
    hashed = (_generator_digest(), spec.name, spec.source)
    return hashlib.sha256("\0".join(hashed).encode(errors="surrogatepass")).hexdigest()[:16]


@functools.cache
def _generator_digest() -> str:
    """Return a digest of the generator, the templates, the catalogue and the formatter."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    roots = [
        *(package / name for name in _GENERATOR_PATHS),
        data_folder("templates"),
        data_folder("specs"),
    ]
    for root in roots:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix in (".py", ".jinja"):
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(_formatter_version().encode())
    return digest.hexdigest()


def _formatter_version() -> str:
    """Return the version of ruff, on which the text depends; "" if ruff is not installed."""
    try:
        return importlib.metadata.version("ruff")
    except importlib.metadata.PackageNotFoundError:
        return ""


def data_folder(name: str) -> Path:
    """Return a folder of data in the package: specs or templates."""
    return Path(str(importlib.resources.files(f"optgen.{name}")))


def _import_generated(spec: Spec, key: str) -> ModuleType:
    """Import the generated package of a spec."""
    name = re.sub(r"\W", "_", f"optgen_{spec.name}_{key}".lower())
    return import_package(name, *texts_of(key, functools.partial(_generate, spec)))


def _generate(spec: Spec) -> dict[str, str]:
    from optgen import emit
    from optgen.spec.errors import SpecError, spec_errors
    from optgen.spec.read_spec import read_base, read_spec

    first, *others = read_spec(spec)
    if first.is_function:
        hint = "optgen build FILE --out DIR writes the function"
        message = f"`{first.name}` is a function over lists, but load makes optimizer classes"
        raise SpecError(first.place, message, hint, first.source)
    if others:
        hint = f"the first is `{first.name}`; one algorithm, one file"
        message = "a second spec in a text that is loaded as one class"
        raise SpecError(others[0].place, message, hint, first.source)
    base = read_base(first, data_folder("specs"))
    with spec_errors(first):
        return emit.render_all(first, emit.find_ruff(), base)


def _make_loaded_class(module: ModuleType, spec: Spec) -> type[LoadedOptimizer]:
    """Return a subclass of a module's generated class, with its spec as the attribute `spec`."""
    generated = next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and _is_generated(value, module)
    )
    copied_names = (
        "__module__",
        "__qualname__",
        "__doc__",
        "__firstlineno__",
        "__static_attributes__",
    )
    namespace = {name: vars(generated)[name] for name in copied_names if name in vars(generated)}
    loaded = LoadedType(generated.__name__, (generated,), {**namespace, "spec": spec})
    return cast("type[LoadedOptimizer]", loaded)


def _is_generated(cls: type, module: ModuleType) -> bool:
    return cls.__module__ == module.__name__ and issubclass(cls, GeneratedOptimizer)


def _reduce(cls: LoadedType) -> str | tuple[Any, ...]:
    """Reduce a loaded class to its spec for pickle; a class derived from it, to its name."""
    return (load, (cls.spec,)) if "spec" in vars(cls) else cls.__qualname__


copyreg.pickle(LoadedType, _reduce)
