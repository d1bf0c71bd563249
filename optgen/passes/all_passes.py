"""List all passes, in order: for each target one list, with the reason for each place.

`plan_rule.py` runs a list. A rule begins as an `Algorithm`. The passes before the cut change the
`Algorithm`, the passes up to `assemble_plan` change a `CutRule`, and the others change the `Plan`.

A printer runs the last passes itself, since it prints what they return beside the plan:
`extract_draws`, `with_listed_streams` and `select_torch_ops` for Python; for rules with phases also
`rematerialize_if_blocked` and `coefficients_to_factors`; `BranchFlattener` for loops of C++.

Two neighbours without a reason at their place may be swapped: the code of some thirty rules stays.
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
    """A pass, and the reason for its place.

    `asks` names what else the pass needs: fields of a `Request`.
    """

    run: Callable[..., Any]
    reason: str = ""
    asks: tuple[str, ...] = ()


Passes = tuple[Pass, ...]

_PREPARE_RULE: Passes = (
    Pass(drop_unused_hypers, "before any pass that looks at hyperparameters"),
    Pass(extract_items, "before SSA form: its names are names of the rule"),
    Pass(add_maximize, "after drop_unused_hypers, which would not see that `maximize` is read"),
    Pass(specialize, "before folding, which drops the arms that a fact decides", ("facts",)),
    Pass(fold_constants, "before names are given to what would be folded"),
    Pass(extract_properties, "before SSA form: its names are names of the rule"),
    Pass(expand_reductions, "before SSA form, and before equal reductions are shared"),
    Pass(use_printed_names, "last before SSA form: all names of the rule exist"),
)

_CUT: Passes = (
    *_PREPARE_RULE,
    Pass(to_ssa, "all passes below compare values by name and version", ("separate_versions",)),
    Pass(extract_reductions, "the rule is cut at statements that are reductions or matrix ops"),
    Pass(drop_redundant_stores, "fewer states are stored, so fewer are kept apart below"),
    Pass(split_live_ranges, "the cut runs statements out of order", ("separate_versions",)),
    Pass(cut_into_phases, "", ("order",)),
    Pass(split_scalars, "after the cut, which decides what each sweep computes again"),
    Pass(copy_overwritten_scalars, "phases may overwrite what the scalar program computes"),
    Pass(drop_unread_values, "after the splitter, which inlines values into their readers"),
    Pass(drop_unread_scalars, "after drop_unread_values, which leaves fewer readers"),
    Pass(check_reads, "before drop_self_copies, since versions are followed through copies"),
    Pass(drop_self_copies, "before the streams of a sweep follow from what it reads"),
    Pass(assemble_plan),
    Pass(hoist_between_sweeps, "first on plans: later passes find a name or its negation"),
)
"""A rule that is cut at its reductions. An elementwise rule has one sweep."""

_WHOLE: Passes = (
    *_PREPARE_RULE,
    Pass(to_ssa, "all passes below compare values by name and version", ("separate_versions",)),
    Pass(share_equal_values, "finds products and reductions that are equal under other names"),
    Pass(extract_reductions, "before products, which may be operands of reductions"),
    Pass(extract_products, "no product or decomposition is computed twice"),
    Pass(drop_redundant_stores, "fewer states are stored, so fewer are kept apart below"),
    Pass(split_live_ranges, "small values get names of their own", ("separate_versions",)),
    Pass(keep_whole),
    Pass(split_scalars),
    Pass(copy_overwritten_scalars, "the rule may overwrite what the scalar program computes"),
    Pass(drop_unread_values, "after the splitter, which inlines values into their readers"),
    Pass(drop_unread_scalars, "after drop_unread_values, which leaves fewer readers"),
    Pass(drop_self_copies, "before the streams of the sweep follow from what it reads"),
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
    Pass(encode_choices, "kernels compare numbers, not strings"),
    Pass(use_lerp_form),
    Pass(invert_factors),
    Pass(merge_square_roots),
    Pass(fold_denominators),
    Pass(factor_out_divisors, "after folding, which multiplies coefficients of single terms"),
    Pass(hoist_scalars, "after the algebra"),
)
_PYTHON: Passes = (
    Pass(hoist_scalars, "after the algebra"),
    Pass(inline_scalars, "takes back the names of short scalars that are used once"),
    Pass(use_ieee_operators, "after inlining, which knows an inverse by its `/`"),
)
_TRUTHS = Pass(truths_to_bool, "after all passes that ask whether a value is a `truth`")
_DRAWS = Pass(draw_first, "last, since no pass may move a draw")

FUSED_CPU = Target(
    "late", (*_KERNEL, Pass(zero_gradients, "last: it adds a store to the sweep that reads last"))
)
FUSED_TRITON = Target(
    "late",
    (
        Pass(isolate_mixed_reductions, "first: the new sweeps take part in the algebra"),
        *_KERNEL,
        Pass(split_finishes, "last: the parts of a finish are in kernels of their own"),
    ),
)
FOREACH = Target("early", (Pass(merge_square_roots), Pass(fold_denominators), *_PYTHON, _TRUTHS))
FORLOOP = Target("early", (*_PYTHON, _TRUTHS))
WHOLE_IN_PYTHON = Target("whole", (*_PYTHON, _TRUTHS, _DRAWS))
"""The for-loop and foreach of a rule on whole matrices."""
FUNCTIONAL = Target(
    "whole", (*_PYTHON, Pass(if_convert, "before truths_to_bool: it has an op of its own"), _TRUTHS)
)
"""The functional form, for autograd and graph captures."""
OUTLINED = Target("whole", (Pass(hoist_scalars), Pass(use_ieee_operators), _TRUTHS, _DRAWS))
"""A rule on whole matrices whose elementwise parts become functions."""
