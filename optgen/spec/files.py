"""Read the text of spec files: UTF-8, with or without a byte order mark."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from pathlib import Path

from optgen.ir.nodes import Place
from optgen.spec.errors import SpecError
from optgen.spec.reserved_names import is_snake_case

MAX_FILE_BYTES = 200_000
"""The largest size of a spec file, in bytes."""


def read_file(path: Path) -> str:
    """Return the text of a spec file.

    Raises:
        SpecError: the file name is no module name, the file is too large, or it is not UTF-8.
        OSError: the file does not exist, or is a folder, a pipe or a device.
    """
    check_file_name(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        message = f"this file has more than {MAX_FILE_BYTES:,} bytes"
        raise SpecError(
            Place(str(path), 1, 1), message, "a spec is one function: is this a spec file?"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", errors="replace")
        place = Place(str(path), before.count("\n") + 1, len(before) - before.rfind("\n"))
        message = f"this is not Python: {error}"
        raise SpecError(place, message, "is it text? a spec is saved as UTF-8") from None


def module_name(name: str) -> str:
    """Return the snake_case name for a class: SparseAdam -> sparse_adam, AdamW -> adamw."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])(?=[a-z])", r"_\1", name).lower()


def catalogue_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known module that a class or module name means: GaLore and ga_lore mean galore."""
    return {each.replace("_", ""): each for each in known}.get(name.lower().replace("_", ""))


def check_file_name(path: Path) -> None:
    """Raise a SpecError if no Python module may have this file name."""
    if not is_snake_case(path.stem):
        message = "the file name must be in snake_case, and no keyword of Python"
        hint = f"generated modules get this name: call it {_suggestion(path.stem)}.py"
        raise SpecError(Place(str(path), 1, 1), message, hint)


def _suggestion(stem: str) -> str:
    words = re.findall("[a-z0-9]+", module_name(stem))
    name = "_".join(words).lstrip("0123456789_")
    return name if is_snake_case(name) else f"my_{name}".rstrip("_")
