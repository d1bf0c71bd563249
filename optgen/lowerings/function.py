"""Lower an `@elementwise` algorithm to a function over lists of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import plural
from optgen.lowerings.lowering import Lowering
from optgen.lowerings.optimizer import rule_of
from optgen.lowerings.optimizer.arguments import Argument, annotation
from optgen.lowerings.optimizer.checks import checks
from optgen.lowerings.optimizer.doc import function_docstring
from optgen.lowerings.python.literals import docstring, literal
from optgen.passes.prepare_rule import rename


def function_context(algorithm: Algorithm) -> Mapping[str, Any]:
    """Return the template's variables.

    `lists` and `hypers` are the arguments, in the author's order; `columns` are the same lists in
    the order of the rule's tensors.
    """
    plural_names = dict(zip(algorithm.tensors, map(plural, rename(algorithm).tensors), strict=True))
    hypers = [Argument(h.name, annotation(h), literal(h.default)) for h in algorithm.hypers]
    lists = {name: plural_names[name] for name in algorithm.lists}
    return {
        "algorithm": algorithm,
        "docstring": docstring(function_docstring(algorithm, lists, hypers)),
        "rule": rule_of(algorithm),
        "lists": list(lists.values()),
        "columns": list(plural_names.values()),
        "hypers": hypers,
        "checks": checks(algorithm, base=None),
    }


FUNCTION = Lowering(
    name="function",
    filename="__init__.py",
    template="function.py.jinja",
    lower=function_context,
    content="function",
)
