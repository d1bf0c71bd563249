"""Define the decorators of a spec, which return inert objects: nothing in a spec runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from optgen.ir.nodes import Place
from optgen.spec.declare import Modifier, Spec, inert_spec
from optgen.spec.errors import SpecError


def optimizer(
    *bare: Callable[..., None],
    paper: str = "",
    base: str | None = None,
    keywords: tuple[str, ...] = (),
    group: tuple[str, ...] = (),
    gradient: str = "dense",
    sparse_hint: str = "",
    step: str = "tensor",
    scalar_device: str = "cpu",
    compute_dtype: str = "at_least_float32",
    zero_grad: bool = False,
) -> Callable[[Callable[..., None]], Spec]:
    """Mark a function as the spec of an optimizer.

    Args:
        *bare: the function, if the decorator is written without brackets; this is an error.
        paper: where the algorithm was published: an http or https URL, doi:10.… or arXiv:….
        base: the algorithm whose rule this spec takes over, with other defaults and `fixed` values.
        keywords: the order of all arguments, if not the spec's own; arguments after "*" are
            keyword-only.
        group: the order of the param group's keys, if not the spec's own.
        gradient: "dense"; "rows", if sparse gradients work too; or "sparse_only".
        sparse_hint: the last words of the error about a gradient that is wrongly sparse or dense.
        step: the type of the step count in a checkpoint, a 0-dim "tensor" or an "int".
        scalar_device: the device of the step count and of scalar states in a group that is neither
            `fused` nor `capturable`: "cpu", or "param" for the parameter's device.
        compute_dtype: the dtype in which `forloop` and `foreach` compute elements. The default is
            at least float32, as the fused lowerings do; "param" is the parameter's dtype, as in
            torch's classes.
        zero_grad: whether a step leaves the gradients at zero.

    Returns:
        A decorator that turns the function into an inert `Spec`.

    Raises:
        SpecError: the function's text cannot be found, or the decorator has no brackets.
    """
    for function in bare:
        _refuse_bare(inert_spec(function))
    return inert_spec


def _refuse_bare(spec: Spec) -> NoReturn:
    """Raise the SpecError for a decorator without brackets."""
    lines = ["\n"] * (spec.line - 1) + spec.source.splitlines(keepends=True)
    decorators = [n for n, line in enumerate(lines) if line.lstrip().startswith("@")]
    line_index = decorators[0] if decorators else spec.line - 1
    raise SpecError(
        Place(spec.file, line_index + 1, lines[line_index].find("@") + 2),
        "the only decorator of the language is @optimizer(…)",
        '@optimizer(paper="https://…")',
        "".join(lines),
    )


def modifier(
    *,
    stage: str,
    weights: str = "",
    follows: bool = False,
    step: str = "",
    guard: str = "",
    zero_grad: bool = False,
) -> Callable[[Callable[..., None]], Modifier]:
    """Mark a function as a modifier of optimizers, for `optgen.compose`.

    The function takes some of the names p, g, v, u, t and lr before `/`: the parameter, its
    gradient, the second moment, the update that will be added to the parameter, the step count, and
    the learning rate. States stand between `/` and `*`, hyperparameters after `*`.

    Args:
        stage: when the modifier runs, and so what it changes.
        weights: a state that the rule and the modifiers of the update read and move instead of the
            parameter.
        follows: whether an element of `weights` that no longer rounds to the parameter becomes the
            parameter's, before the rule.
        step: a variable or a state that all later parts read instead of the step count.
        guard: a variable. Unless it is true, the parameter and all states keep their values.
        zero_grad: whether the step leaves the gradients at zero.

    Returns:
        A decorator that turns the function into an inert `Modifier`.
    """
    return lambda function: Modifier(inert_spec(function))


def elementwise(function: Callable[..., None]) -> Spec:
    """Mark a function as a rule over parallel lists of tensors, for which there is no class.

    Lists are declared before `/`, numbers after `*`. The rule is written for one tensor of each
    list and works element by element. Assigning to a list's name stores into the list. At least
    one list is only read.
    """
    return inert_spec(function)
