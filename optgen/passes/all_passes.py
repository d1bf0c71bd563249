"""List all passes, in order: for each target one list, with the reason for each place.

`plan_rule.py` runs a list. A rule begins as an `Algorithm`. The passes before the cut change the
`Algorithm`, the passes up to `assemble_plan` change a `CutRule`, and the others change the `Plan`.

Some passes stand outside of the lists. Lowerings to kernels begin with another `Algorithm`: that of
`load_device_scalars`, and in C++ also that of `specialize_unit_matrices`. `outline_sweeps` makes
functions of a plan of `OUTLINED`. A printer runs the last passes itself, since it prints what they
return beside the plan: `extract_draws`, `with_listed_streams` and `select_torch_ops` for Python;
for rules with phases also `rematerialize_if_blocked` and `coefficients_to_factors`; and
`BranchFlattener` for loops of C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from optgen.passes.assemble_plan import assemble_plan, check_reads
from optgen.passes.convert_branches import if_convert
from optgen.passes.cut_phases import Order, cut_into_phases, keep_whole
from optgen.passes.dead_code import (
    drop_redundant_stores,
    drop_self_copies,
    drop_unread_scalars,
    drop_unread_values,
)
from optgen.passes.equal_values import share_equal_values
from optgen.passes.extract_subexpressions import (
    draw_first,
    extract_items,
    extract_products,
    extract_properties,
    extract_reductions,
)
from optgen.passes.fold_constants import fold_constants
from optgen.passes.hoist_between_sweeps import hoist_between_sweeps, invert_factors
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.prepare_for_kernels import encode_choices, zero_gradients
from optgen.passes.prepare_rule import (
    add_maximize,
    drop_unused_hypers,
    expand_reductions,
    specialize,
    use_printed_names,
)
from optgen.passes.python_operators import truths_to_bool, use_ieee_operators
from optgen.passes.split_finishes import isolate_mixed_reductions, split_finishes
from optgen.passes.split_scalars import split_scalars
from optgen.passes.ssa import copy_overwritten_scalars, split_live_ranges, to_ssa
from optgen.passes.sweep_algebra import (
    factor_out_divisors,
    fold_denominators,
    merge_square_roots,
    use_lerp_form,
)


class Pass(NamedTuple):
    """A pass, and the reason for its place; without one, it may change places with neighbours.

    Neighbours are of the same kind: `cut_into_phases`, `keep_whole` and `assemble_plan` stay.

    `asks` names what else the pass needs: fields of a `Request`.
    """

    run: Callable[..., Any]
    reason: str = ""
    asks: tuple[str, ...] = ()


Passes = tuple[Pass, ...]

_PREPARE_RULE: Passes = (
    Pass(drop_unused_hypers, "before folding, which may drop the last reader of an argument"),
    Pass(extract_items, "before SSA form, which numbers its names, too"),
    Pass(add_maximize, "before SSA form, since it assigns the gradient"),
    Pass(specialize, "before folding, which drops the arms that the facts decide", ("facts",)),
    Pass(fold_constants, "at once, since a dropped arm may read states that do not exist"),
    Pass(extract_properties, "before SSA form, which numbers its names, too"),
    Pass(expand_reductions, "before extract_reductions, which knows primitive ones only"),
    Pass(use_printed_names, "after add_maximize, which quotes the author's name of the gradient"),
)

_TO_SSA = Pass(
    to_ssa, "from here on, a name and a version stand for one value", ("separate_versions",)
)
_LIVE_RANGES = Pass(
    split_live_ranges,
    "after extract_reductions, whose results are small values; before statements change places",
    ("separate_versions",),
)
_STORES = Pass(drop_redundant_stores, "before a sweep is chosen for each store")
_COPY_SCALARS = Pass(copy_overwritten_scalars, "after split_scalars, which makes the program")
_UNREAD_VALUES = Pass(drop_unread_values, "after split_scalars, which inlines values into readers")
_UNREAD_SCALARS = Pass(drop_unread_scalars, "after drop_unread_values, which leaves fewer readers")
_SELF_COPIES = Pass(drop_self_copies, "before a sweep gets the streams that it reads")

_CUT: Passes = (
    *_PREPARE_RULE,
    _TO_SSA,
    Pass(extract_reductions, "before the cut, which is at reductions and matrix ops"),
    _STORES,
    _LIVE_RANGES,
    Pass(cut_into_phases, asks=("order",)),
    Pass(split_scalars, "after the cut, which decides what a sweep computes again"),
    _COPY_SCALARS,
    _UNREAD_VALUES,
    _UNREAD_SCALARS,
    Pass(check_reads, "before drop_self_copies: versions are followed through copies"),
    _SELF_COPIES,
    Pass(assemble_plan),
    Pass(hoist_between_sweeps, "before the algebra, which takes its results for names"),
)
"""A rule that is cut at its reductions. An elementwise rule has one sweep."""

_WHOLE: Passes = (
    *_PREPARE_RULE,
    _TO_SSA,
    Pass(share_equal_values, "before values are compared by the names in them"),
    Pass(extract_reductions),
    Pass(extract_products, "before split_scalars, which keeps statements of products"),
    _STORES,
    _LIVE_RANGES,
    Pass(keep_whole),
    Pass(split_scalars),
    _COPY_SCALARS,
    _UNREAD_VALUES,
    _UNREAD_SCALARS,
    _SELF_COPIES,
    Pass(assemble_plan),
)
"""A rule that is one sweep, executed statement by statement on whole tensors."""

COMMON: dict[Order, Passes] = {"late": _CUT, "early": _CUT, "whole": _WHOLE}


class Target(NamedTuple):
    """The passes of a target: those of all targets with this order, then its own.

    A kernel computes all of a sweep at once, so divisions count. In foreach an operation is a pass
    over memory, so its algebra saves whole operations. The for-loop keeps the author's roots and
    divisions. All of this algebra needs coefficients as expressions, so it comes before
    `hoist_scalars`, which names them.
    """

    order: Order
    own: Passes

    @property
    def passes(self) -> Passes:
        """All passes, in order."""
        return (*COMMON[self.order], *self.own)


_KERNEL: Passes = (
    Pass(encode_choices),
    Pass(use_lerp_form),
    Pass(invert_factors),
    Pass(merge_square_roots),
    Pass(fold_denominators),
    Pass(factor_out_divisors, "after folding, which multiplies coefficients of single terms"),
    Pass(hoist_scalars, "after the algebra, which needs coefficients as expressions"),
)
_PYTHON: Passes = (
    Pass(hoist_scalars, "after the algebra, which needs coefficients as expressions"),
    Pass(inline_scalars, "after hoisting: it takes back names that are used once"),
    Pass(use_ieee_operators, "after inlining, which knows an inverse by its `/`"),
)
_TRUTHS, _DRAWS = Pass(truths_to_bool), Pass(draw_first)

FUSED_CPU = Target("late", (*_KERNEL, Pass(zero_gradients)))
FUSED_TRITON = Target(
    "late",
    (
        Pass(isolate_mixed_reductions, "before the algebra, in which its sweeps take part"),
        *_KERNEL,
        Pass(split_finishes),
    ),
)
FOREACH = Target("early", (Pass(merge_square_roots), Pass(fold_denominators), *_PYTHON, _TRUTHS))
FORLOOP = Target("early", (*_PYTHON, _TRUTHS))
WHOLE_IN_PYTHON = Target("whole", (*_PYTHON, _TRUTHS, _DRAWS))
"""The for-loop and foreach of a rule on whole matrices."""
_BOTH_FORMS = Pass(if_convert, "after hoisting: scalars of a branch get both forms, too")
FUNCTIONAL = Target("whole", (*_PYTHON, _BOTH_FORMS, _TRUTHS))
"""The functional form, for autograd and graph captures."""
OUTLINED = Target("whole", (Pass(hoist_scalars), Pass(use_ieee_operators), _TRUTHS, _DRAWS))
"""A rule on whole matrices whose elementwise parts become functions."""
