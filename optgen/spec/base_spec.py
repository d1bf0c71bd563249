"""What a spec with `base=` derives from: another spec of the catalogue."""

from __future__ import annotations

from pathlib import Path

from optgen.ir.algorithm import Algorithm
from optgen.spec.argument_order import order_error
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.read_spec import read_spec
from optgen.spec.require_conditions import check_defaults


def read_base(algorithm: Algorithm, specs: Path) -> Algorithm | None:
    """The algorithm a spec derives from, out of the folder of specs; None if it derives from none.

    Raises:
        SpecError: there is no such algorithm, it is derived from another one itself, or the
            spec does not fit it: it lacks a hyperparameter that the spec changes, an order leaves
            one out, or a default violates a requirement.
    """
    if algorithm.base is None:
        return None
    specified = (a for path in sorted(specs.glob("[!_]*.py")) for a in read_spec(path))
    catalogue = {a.name: a for a in specified if not a.is_function}
    base = catalogue.get(algorithm.base)
    if base is None:
        hint = did_you_mean(algorithm.base, catalogue, f"there are {', '.join(catalogue)}")
        message = f"no algorithm is called `{algorithm.base}`"
        raise SpecError(algorithm.place, message, hint, algorithm.source)
    if base.base is not None:
        message = f"`{base.name}` is derived itself"
        raise SpecError(algorithm.place, message, f'base="{base.base}"', algorithm.source)
    for hyper in algorithm.hypers:
        if base.hyper(hyper.name) is None:
            known = [h.name for h in base.hypers]
            raise SpecError(
                hyper.place,
                f"`{base.name}` has no hyperparameter `{hyper.name}`",
                did_you_mean(hyper.name, known, f"it has {', '.join(known)}"),
                algorithm.source,
            )
    _check_whole(algorithm, base)
    return base


def _check_whole(algorithm: Algorithm, base: Algorithm) -> None:
    """What can be said only of a spec and its base together: orders, and what defaults must be."""
    hypers = [algorithm.hyper(h.name) or h for h in base.hypers]
    wrong = order_error(algorithm, hypers)
    if wrong:
        raise SpecError(algorithm.place, *wrong, algorithm.source)
    if algorithm.group not in ((), base.group):
        message = f"the order of group keys is that of `{base.name}`"
        raise SpecError(algorithm.place, message, "leave group= out", algorithm.source)
    check_defaults(algorithm.requires, hypers, algorithm.source)
    check_defaults(base.requires, hypers, base.source)
