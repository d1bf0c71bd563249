"""Choose the classes of an offloaded optimizer: one for its groups, one each for host and device.

`bucket_kernel.py` calls the host's kernel.

All three are compositions of the same rule with float32 weights, so they have the same states. The
host keeps no copy of the rounded weights: the kernel of an elementwise rule only writes them. The
kernel of a rule that reduces reads them. Its sums would have other bits without this stream: the
number of streams decides in which order a sum is made.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from optgen.compositions import (
    Composition,
    StateDtype,
    compose,
    modifier,
    modifier_from_file,
    spec_of,
    state_dtype,
)
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, children, expressions
from optgen.ir.ops import PROPERTIES
from optgen.jit import data_folder, load
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import Rule
from optgen.spec.declare import Modifier, Spec
from optgen.spec.read_spec import read_spec

MASTER = "master"
"""The checkpoint key of the float32 weights."""

FACTOR = "gradient_factor"
"""The hyperparameter of the host's class that all gradients are multiplied by."""


class OffloadRule(NamedTuple):
    """The classes of an offloaded optimizer."""

    public: Any  # of the groups, the defaults and the checkpoint; its CPU steps have the same bits
    host: Any  # whose kernel steps
    device: Any  # which steps small parameters where they are
    host_reads_weights: bool  # whether the kernel needs the rounded weights before the step

    @property
    def kernel_rule(self) -> Rule:
        """The rule of the host's kernel."""
        rule: Rule = self.host.rule
        return rule


def offload_rule(
    rule: type[GeneratedOptimizer] | str | os.PathLike[str] | Spec, clips: bool
) -> OffloadRule:
    """Return the classes for a rule.

    Args:
        rule: A class of optgen, a name of the catalogue, a composition, a path or a spec.
        clips: Whether steps multiply all gradients by a number.

    Raises:
        CompositionError: The rule cannot be composed with float32 weights.
        TypeError: `rule` is no rule.
        ValueError: The host cannot step the rule; the message says why.
    """
    spec, others = spec_of(rule), list[Modifier | StateDtype]()
    if isinstance(spec, Composition):
        own_master = modifier(MASTER).spec.source
        others = [
            each
            for each in spec.modifiers
            if isinstance(each, StateDtype) or each.spec.source != own_master
        ]
        spec = spec.base
    plain = load(spec)
    name = plain.__name__
    _check(plain.rule, name)
    if _chooses_dtypes(plain.rule) and not any(isinstance(each, StateDtype) for each in others):
        others.append(state_dtype("float32"))
    factor = [_own_modifier("gradient_factor")] if clips else []
    public = compose(spec, *others, modifier(MASTER), name=f"Offloaded{name}")
    _check(public.rule, name)
    device = (
        compose(spec, *others, *factor, modifier(MASTER), name=f"Device{name}") if clips else public
    )
    if not public.rule.elementwise:
        return OffloadRule(public, device, device, host_reads_weights=True)
    written = _own_modifier("written_master")
    host = compose(spec, *others, *factor, written, name=f"Host{name}")
    (algorithm, *_) = read_spec(host.spec)  # type: ignore[attr-defined]
    if _reads_first(algorithm.rule, algorithm.param):
        raise ValueError(
            f"offload keeps the weights of {name} in float32 on the host, and a modifier reads "
            "the rounded weights: leave that modifier out"
        )
    return OffloadRule(public, host, device, host_reads_weights=False)


def _own_modifier(name: str) -> Modifier:
    return modifier_from_file(data_folder("specs") / "modifiers" / "offload" / f"{name}.py")


def _chooses_dtypes(rule: Rule) -> bool:
    """Tell whether some state of a rule has the parameter's dtype unless one is chosen."""
    return any(each.dtype is None and each.shape != "scalar" for each in rule.states)


def _reads_first(program: Program, name: str) -> bool:
    """Tell whether a program reads a name before an assignment to it that every path takes."""
    for statement in program:
        if any(_reads_value(each, name) for each in expressions((statement,))):
            return True
        if isinstance(statement, Assign) and statement.target.name == name:
            return False
    return False


def _reads_value(expression: Expr, name: str) -> bool:
    """Tell whether an expression reads the elements of a name; a shape predicate does not."""
    if isinstance(expression, Call) and expression.op in PROPERTIES:
        return False
    if isinstance(expression, Ref):
        return expression.name == name
    return any(_reads_value(each, name) for each in children(expression))


def _check(rule: Rule, name: str) -> None:
    """Raise a ValueError for a rule that the host cannot step, or should not."""
    if rule.matrix_calls or rule.why_uncut:
        raise ValueError(
            f"{name} computes with whole matrices, which offload leaves to the device: on a CPU "
            "core, Muon takes 28 to 46 times as long per parameter as AdamW. Offload the other "
            "parameters, and step these with an optimizer on the device"
        )
    reasons = {
        "reduces over all parameters (clip by their norm with clip_norm= of offload)": rule.wide,
        "keeps numbers in its groups": bool(rule.group_states),
        "takes further inputs in each step": bool(rule.inputs),
        "takes sparse gradients only": rule.gradient == "sparse_only",
        "sets gradients to zero": rule.zero_grad,
        "counts steps in Python numbers": rule.step == "int",
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"offload cannot step {name}: the rule {reason}")
