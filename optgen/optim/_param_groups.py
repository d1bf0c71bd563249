"""Make param groups of a model by the names of its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

_LAYER_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


def param_groups(
    model: nn.Module,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Return param groups of a model's trainable parameters, for the constructor of an optimizer.

    Parameters with the same options share a group. Each group also has `param_names`, the names of
    its parameters.

    Args:
        model: its `named_parameters()` are grouped, in their order; frozen ones are left out.
        options: options by patterns of names, as in `{"*.bias": {"lr": 0.1}}`. `*` stands for any
            characters, also dots. Where several patterns match a name, later ones prevail.
        lr: the learning rate that `layer_decay` scales.
        weight_decay: the weight decay. Biases and other vectors, such as the scales of
            normalization layers, get none. None leaves the decay to the optimizer.
        layer_decay: a factor from 0 to 1 of the learning rate for each layer between a parameter
            and the output; frozen layers count. A layer is the first number in a name, as in
            "blocks.3.attn.weight". Parameters without a number form one more layer if they come
            before all layers, and belong to the output otherwise.

    Raises:
        ValueError: a pattern matches no parameter; `layer_decay` is given without `lr`, or is not
            between 0 and 1.
        TypeError: `layer_decay` is no number.
    """
    named_params = [
        (name, param) for name, param in model.named_parameters() if param.requires_grad
    ]
    names = [name for name, _ in named_params]
    by_pattern = {pattern: dict(values) for pattern, values in (options or {}).items()}
    for pattern in by_pattern:
        matching_names(names, pattern)
    _check_layer_decay(layer_decay, lr)
    all_names = [name for name, _ in model.named_parameters()]  # frozen layers are layers, too
    distances = dict(zip(all_names, _distances_to_output(all_names), strict=True))
    groups: dict[str, dict[str, Any]] = {}
    for name, param in named_params:
        group_options: dict[str, Any] = {}
        if weight_decay is not None:
            has_decay = param.ndim >= 2 and not name.endswith("bias")
            group_options["weight_decay"] = weight_decay if has_decay else 0.0
        if layer_decay is not None and lr is not None:
            group_options["lr"] = lr * layer_decay ** distances[name]
        for pattern, pattern_options in by_pattern.items():
            group_options |= pattern_options if fnmatchcase(name, pattern) else {}
        group = groups.setdefault(
            repr(sorted(group_options.items())), {"params": [], "param_names": [], **group_options}
        )
        group["params"].append(param)
        group["param_names"].append(name)
    return list(groups.values())


def matching_names(names: Sequence[str], pattern: str) -> set[str]:
    """Return the names that match a pattern.

    Raises:
        ValueError: the pattern matches no name.
    """
    matches = {name for name in names if fnmatchcase(name, pattern)}
    if not matches:
        first_names = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise ValueError(f"no trainable parameter is called {pattern!r}: there are {first_names}")
    return matches


def _check_layer_decay(layer_decay: object, lr: float | None) -> None:
    """Raise an error for a decay that is no factor, or that has no rate to scale."""
    if layer_decay is None:
        return
    if isinstance(layer_decay, bool) or not isinstance(layer_decay, int | float):
        raise TypeError(f"layer_decay must be a number such as 0.9, not {layer_decay!r}")
    if not 0 <= layer_decay <= 1:
        raise ValueError(
            f"layer_decay must be between 0 and 1, not {layer_decay}: each layer further from the "
            "output has the rate of the next one times this factor"
        )
    if lr is None:
        raise ValueError("layer_decay scales the learning rate: give lr too")


def _distances_to_output(names: list[str]) -> Iterator[int]:
    """Yield each parameter's distance to the output, in layers.

    Layer `number` has depth `number + 1`. A name without a number has depth 0 before the first
    layer, and `output_depth` after it, or if there are no layers.
    """
    numbers = [int(match[1]) if (match := _LAYER_NUMBER.search(name)) else None for name in names]
    layer_numbers = [number for number in numbers if number is not None]
    output_depth = max(layer_numbers, default=-1) + 2
    has_seen_layer = False
    for number in numbers:
        has_seen_layer = has_seen_layer or number is not None
        if number is not None:
            depth = number + 1
        else:
            depth = output_depth if has_seen_layer or not layer_numbers else 0
        yield output_depth - depth
