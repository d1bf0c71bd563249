"""Define the declarations of a signature, as Python functions without effect.

A spec is read from its source and never executed by optgen. But a notebook, an editor or a test may
import its module. So each declaration returns a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeclarationToken:
    """Token that a call of a declaration returns when a spec file is imported."""

    declaration: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


def state(
    key: str,
    *,
    init: float | str = 0.0,
    shape: str | tuple[str, str] = "like",
    dtype: str | None = None,
    when: str | None = None,
    role: str = "",
    eager: bool = False,
    rows: bool = True,
    block: int = 256,
    map: str = "dynamic",
    min_elements: int = 4096,
) -> Any:
    """Declare a state, which is kept from one step to the next.

    Args:
        key: its name in a checkpoint: `state("exp_avg")`.
        init: its initial value: a number, a hyperparameter's name, "p", a copy of the parameter,
            or "index", the parameter's number in the optimizer.
        shape: "like" the parameter; "row", one number per row: the parameter's shape with size 1 in
            the last axis; "col", one number per column: size 1 in the last axis but one; "scalar",
            one number per parameter; "group", one number for all parameters of a group, which the
            group keeps under the key; "all", one number for all groups, which each of them keeps;
            or a matrix: two of "rows", "cols" and "rank", such as ("rows", "rows") or
            ("cols", "rank"). The rank is a hyperparameter of this name.
        dtype: None for the parameter's dtype; "at_least_float32" for float32 where the parameter
            has 16 bits, and else the parameter's dtype; "float32", "bfloat16" or "float16". With
            one of them, a step computes in float32 or wider. For a "scalar": "float64", which None
            means too; "float32"; or "torch" for torch's own choice, which is float32, or float64 if
            that is the default dtype. "8bit" for codes of 8 bits, with a float32 scale for each
            block.
        when: the condition under which it exists: a hyperparameter, "amsgrad" or "not amsgrad"; or
            "factored", "tall" or their negations. A parameter with rows and columns is factored; it
            is tall if it has no fewer rows than columns.
        role: "second_moment" for a mean of squared gradients. Modifiers find the state by its role.
        eager: whether the constructor creates it, instead of the first step.
        rows: False if every row changes in every step, even where a sparse gradient holds few rows.
            While such a state exists, a sparse gradient is used as a dense one.
        block: of a state with dtype="8bit", the consecutive elements that share a scale: 64, 128,
            256 or 512.
        map: of such a state, the values that codes stand for: "dynamic", which are closer together
            the smaller they are, or "linear".
        min_elements: parameters with fewer elements have such a state in float32.
    """
    options = {"init": init, "shape": shape, "dtype": dtype, "when": when, "eager": eager}
    options |= {"block": block, "map": map, "min_elements": min_elements}
    return DeclarationToken("state", (key,), (*options.items(), ("role", role), ("rows", rows)))


def given(name: Any) -> Any:
    """Declare an extra input, `h=given("hessian")`; in a rule, tell whether a step gets it.

    Args:
        name: the argument of `step` that hands it over: `optimizer.step(hessian=[…])`, one tensor
            or None per parameter in the order of the groups. In a rule: the input.
    """
    return DeclarationToken("given", (name,), ())


def hyper(
    default: float | tuple[float | None, ...] | None,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    whole: bool = False,
    optional: bool = False,
    error: str = "",
    tensor: str = "never",
    about: str = "",
    groups: str = "any",
    rows: bool = True,
) -> Any:
    """Declare a hyperparameter that is a number or a tuple of numbers.

    Args:
        default: a number, or a tuple of numbers that the rule unpacks: `beta1, beta2 = betas`.
        ge, gt, le, lt: bounds on the number: at least, above, at most, below.
        whole: whether it is a whole number, as a count of steps is: 2.5 is refused.
        optional: whether it may be None. The rule tests this with `if clip is not None:`. In a
            tuple, a number may be None if its default is None.
        error: the constructor's message for a number out of bounds. `{}` stands for the number, and
            `{index}` or `{number}` for its place in a tuple, counted from 0 or from 1. "" for
            torch's message.
        tensor: whether the class declares that a tensor of one element is accepted: "never", and no
            check looks for one; "always", and the for-loop computes in the tensor's dtype;
            "capturable", as "always", but with foreach only if capturable; or "number": always, and
            only the value of the tensor is used.
        about: its description in the docstring of the class.
        groups: the values that param groups may have: "any"; "equal", one value for all groups; or
            "equal or 0", one value that some groups may replace by 0. Other values are an error.
        rows: False if a sparse gradient is an error while this hyperparameter is true.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt, "whole": whole}
    options = {**bounds, "optional": optional, "error": error, "tensor": tensor, "about": about}
    options |= {"groups": groups, "rows": rows}
    return DeclarationToken("hyper", (default,), tuple(options.items()))


def flag(default: bool, *, about: str = "", groups: str = "any") -> Any:
    """Declare a hyperparameter that is True or False.

    Args:
        default: True or False.
        about: its description in the docstring of the class.
        groups: "equal" if all param groups have one value.
    """
    return DeclarationToken("flag", (default,), (("about", about), ("groups", groups)))


def choice(
    default: str | None,
    *others: str | None,
    error: str = "",
    about: str = "",
    groups: str = "any",
) -> Any:
    """Declare a hyperparameter that is one of a few strings or None; the first is the default.

    The rule tests it with `if norm == "first":` or `if norm is None:`.

    Args:
        default, *others: the values it may have.
        error: the constructor's message for any other value, with `{}` for the value; "" for
            torch's message.
        about: its description in the docstring of the class.
        groups: "equal" if all param groups have one value.
    """
    options = (("error", error), ("about", about), ("groups", groups))
    return DeclarationToken("choice", (default, *others), options)


def fixed(value: bool | str) -> Any:
    """Declare a param group's key that is no argument.

    Args:
        value: always True or always False, or "narrow": whether the group has a parameter of 16
            bits.
    """
    return DeclarationToken("fixed", (value,), ())
