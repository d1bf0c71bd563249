"""Read spec files, and generate the texts of their algorithms, for `build` and `check`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from optgen import emit
from optgen.cli.locate_specs import is_catalogued, specs_folder
from optgen.ir.algorithm import Algorithm
from optgen.passes.derive import derive
from optgen.spec.errors import SpecError, spec_errors
from optgen.spec.read_spec import read_base, read_specs


def read(paths: Iterable[Path]) -> tuple[Algorithm, ...]:
    """Return the algorithms of the files, after checking that no two share an output folder."""
    algorithms = read_specs(paths)
    first_by_module: dict[str, Algorithm] = {}
    for algorithm in algorithms:
        first = first_by_module.setdefault(algorithm.module, algorithm)
        if first is not algorithm and not (first.is_function and algorithm.is_function):
            raise SpecError(
                algorithm.place,
                f"`{algorithm.name}` and `{first.name}` would both be generated into "
                f"{algorithm.module}/",
                "a spec file holds one optimizer, or functions; "
                f"`{first.name}` is at {first.place}",
                algorithm.source,
            )
    return algorithms


def complete(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm with the states and the rule of its base, if it has one."""
    base = read_base(algorithm, specs_folder())
    return derive(algorithm, base) if base else algorithm


def render(algorithm: Algorithm, ruff: str | None) -> dict[str, str]:
    """Return the text of every file of an algorithm."""
    base = read_base(algorithm, specs_folder())
    with spec_errors(algorithm):
        return emit.render_all(algorithm, ruff, base, catalogued=is_catalogued(algorithm))
