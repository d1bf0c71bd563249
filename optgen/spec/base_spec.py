"""Find the spec that `base=` names, and check that the derived spec fits it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from optgen.ir.algorithm import Algorithm
from optgen.spec.argument_order import order_error
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.files import module_name
from optgen.spec.read_spec import read_spec
from optgen.spec.require_conditions import check_defaults


def read_base(algorithm: Algorithm, specs: Path) -> Algorithm | None:
    """Return the algorithm that a spec derives from, or None if it has no `base=`.

    Raises:
        SpecError: no spec in the folder has that name; or the base is itself derived; or the
            derived spec does not fit: it declares a hyperparameter that the base lacks, leaves
            one out of `keywords` or `group`, or has a default that violates a `require`.
    """
    if algorithm.base is None:
        return None
    likely_file = specs / f"{module_name(algorithm.base)}.py"  # reading all specs takes a second
    base = _optimizers([likely_file] if likely_file.is_file() else []).get(algorithm.base)
    if base is None:
        catalogue = _optimizers(sorted(specs.glob("[!_]*.py")))
        base = catalogue.get(algorithm.base)
    if base is None:
        hint = did_you_mean(algorithm.base, catalogue, f"there are {', '.join(catalogue)}")
        message = f"no algorithm is called `{algorithm.base}`"
        raise SpecError(algorithm.place, message, hint, algorithm.source)
    if base.base is not None:
        message = f"`{base.name}` is itself derived from another spec"
        raise SpecError(algorithm.place, message, f'base="{base.base}"', algorithm.source)
    for hyper in algorithm.hypers:
        if base.hyper(hyper.name) is None:
            base_names = [h.name for h in base.hypers]
            raise SpecError(
                hyper.place,
                f"`{base.name}` has no hyperparameter `{hyper.name}`",
                did_you_mean(hyper.name, base_names, f"it has {', '.join(base_names)}"),
                algorithm.source,
            )
    _check_with_base(algorithm, base)
    return base


def _optimizers(paths: Iterable[Path]) -> dict[str, Algorithm]:
    """Return the optimizers of these files by name, without functions over lists."""
    return {a.name: a for path in paths for a in read_spec(path) if not a.is_function}


def _check_with_base(algorithm: Algorithm, base: Algorithm) -> None:
    """Check a derived spec with its base: the order of arguments and group keys, and defaults."""
    hypers = [algorithm.hyper(h.name) or h for h in base.hypers]
    error = order_error(algorithm, hypers)
    if error:
        raise SpecError(algorithm.place, *error, algorithm.source)
    if algorithm.group not in ((), base.group):
        message = f"a derived spec has the group keys of `{base.name}`, in its order"
        raise SpecError(algorithm.place, message, "leave group= out", algorithm.source)
    check_defaults(algorithm.requires, hypers, algorithm.source)
    check_defaults(base.requires, hypers, base.source)
