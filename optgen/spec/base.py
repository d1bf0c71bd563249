"""What a spec with `base=` derives from: another spec of the catalogue."""

from __future__ import annotations

from pathlib import Path

from optgen.ir.algorithm import Algorithm
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.read import module_name, read_spec


def read_base(algorithm: Algorithm, specs: Path) -> Algorithm | None:
    """The algorithm a spec derives from, out of the folder of specs; None if it derives from none.

    Raises:
        SpecError: there is no such algorithm, it derives from another one itself, or it lacks a
            hyperparameter that the spec changes.
    """
    if algorithm.base is None:
        return None
    found = [a for p in specs.glob(f"{module_name(algorithm.base)}.py") for a in read_spec(p)]
    base = next((a for a in found if a.name == algorithm.base), None)
    if base is None or base.base is not None:
        modules = sorted(p.stem for p in specs.glob("*.py") if p.stem != "__init__")
        message = f"`{algorithm.base}` is no algorithm to derive from"
        hint = did_you_mean(module_name(algorithm.base), modules, "it must have a rule of its own")
        raise SpecError(algorithm.place, message, hint, algorithm.source)
    for hyper in algorithm.hypers:
        if base.hyper(hyper.name) is None:
            known = [h.name for h in base.hypers]
            raise SpecError(
                hyper.place,
                f"`{base.name}` has no hyperparameter `{hyper.name}`",
                did_you_mean(hyper.name, known, f"it has {', '.join(known)}"),
                algorithm.source,
            )
    return base
