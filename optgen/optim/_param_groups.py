"""Make param groups of a model by the names of its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


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
            letters, dots too. Where several patterns match a name, later ones prevail.
        lr: the learning rate that `layer_decay` scales.
        weight_decay: the decay of weights. Biases and other vectors, such as the scales of norms,
            get none. None leaves the decay to the optimizer.
        layer_decay: a factor of the learning rate for each layer between a parameter and the
            output. A layer is the first number in a name, as in "blocks.3.attn.weight". Parameters
            without a number belong to the first layer if they stand before all layers, and to the
            output otherwise.

    Raises:
        ValueError: a pattern matches no parameter, or `layer_decay` is given without `lr`.
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    names = [name for name, _ in named]
    chosen = {pattern: dict(values) for pattern, values in (options or {}).items()}
    for pattern in chosen:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            raise ValueError(f"no trainable parameter is called {pattern!r}: there are {shown}")
    if layer_decay is not None and lr is None:
        raise ValueError("layer_decay scales the learning rate: give lr too")
    scales = dict(zip(names, _distances(names), strict=True))
    groups: dict[str, dict[str, Any]] = {}
    for name, param in named:
        own: dict[str, Any] = {}
        if weight_decay is not None:
            own["weight_decay"] = 0.0 if param.ndim < 2 or name.endswith("bias") else weight_decay
        if layer_decay is not None and lr is not None:
            own["lr"] = lr * layer_decay ** scales[name]
        for pattern, values in chosen.items():
            own |= values if fnmatchcase(name, pattern) else {}
        group = groups.setdefault(
            repr(sorted(own.items())), {"params": [], "param_names": [], **own}
        )
        group["params"].append(param)
        group["param_names"].append(name)
    return list(groups.values())


def _distances(names: list[str]) -> Iterator[int]:
    """Yield, for each parameter, how many layers it is away from the output."""
    numbers = [int(found[1]) if (found := _LAYER.search(name)) else None for name in names]
    known = [number for number in numbers if number is not None]
    last = max(known, default=-1) + 2  # places 0 and `last` are for names without numbers
    passed = False
    for number in numbers:
        passed = passed or number is not None
        if number is not None:
            place = number + 1
        else:
            place = last if passed or not known else 0
        yield last - place
