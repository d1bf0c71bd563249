"""The foreach lowering: a whole list of tensors at a time, with the fewest `_foreach_` calls."""

from __future__ import annotations

from optgen.ir.plan import Plan
from optgen.ir.variables import plural
from optgen.lowerings.base import Context, Lowering, planned
from optgen.lowerings.python.scalars import BUCKET, scalar_lines
from optgen.lowerings.python.signature import imports, keywords, list_names, name_fresh
from optgen.lowerings.python.torch_ops import foreach_lines
from optgen.passes.fold_denominators import fold_denominators
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.inplace import to_inplace


def context(plan: Plan) -> Context:
    """What templates/foreach.py.jinja lays out."""
    arguments, plan = keywords(plan), name_fresh(plan)
    (sweep,) = plan.sweeps
    scalars, body = scalar_lines(plan, BUCKET), foreach_lines(to_inplace(plan, sweep))
    return {
        "algorithm": plan.algorithm,
        "lists": list_names(plan.algorithm),
        "keywords": arguments,
        "imports": imports([*scalars, *body]),
        "scalars": scalars,
        "streams": [plural(s.name) for s in sweep.streams],
        "body": body,
    }


FOREACH = Lowering(
    "foreach",
    "foreach.py",
    "foreach.py.jinja",
    planned((fold_denominators, hoist_scalars, inline_scalars), context),
)
