"""Lower a rule on whole matrices to calls of torch, with functions for its elementwise parts."""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.algorithm import Algorithm
from optgen.lowerings.lowering import Context, Lowering
from optgen.lowerings.python.functions import Function, bucket_function, python_file
from optgen.lowerings.python.whole_printer import TENSOR_LISTS, whole_body
from optgen.passes.outline_sweeps import outline_sweeps


def lower(algorithm: Algorithm) -> Context:
    """Return the variables of templates/outlined.py.jinja: the functions of each plan."""
    context = python_file(algorithm, list(_functions(algorithm)))
    sweeps = [function.name for function in outline_sweeps(algorithm).functions]
    imports = context["imports"]
    names = [*imports.get("eager.tensor_lists", []), "sweep_function"]
    return {**context, "imports": {**imports, "eager.tensor_lists": names}, "sweeps": sweeps}


def _functions(algorithm: Algorithm) -> Iterator[Function]:
    for plan in outline_sweeps(algorithm).plans:
        yield bucket_function(plan, lambda p: whole_body(p, TENSOR_LISTS))


def _refusal(algorithm: Algorithm) -> str:
    outlined = outline_sweeps(algorithm)
    return "" if outlined.functions else outlined.why_none or "the rule is cut into sweeps itself"


OUTLINED = Lowering("outlined", "outlined.py", "outlined.py.jinja", lower, refusal=_refusal)
