"""DeepSpeed's configuration: an optimizer of optgen in its section "optimizer"."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from optgen.frameworks.arguments import read_arguments
from optgen.optim import create_optimizer, list_optimizers
from optgen.optim._create_optimizer import known_name

MakeOptimizer = Callable[[Any], Optimizer]
"""A function from parameters or groups to an optimizer."""


def take_optimizer(
    config: Mapping[str, Any] | str | Path,
) -> tuple[dict[str, Any], MakeOptimizer]:
    """Take the optimizer out of a configuration of DeepSpeed.

    DeepSpeed itself looks a type up in its own list and in torch.optim. It also takes a function
    that makes an optimizer, if the configuration has none.

    Args:
        config: the configuration, or its file. `config["optimizer"]["type"]` is a name of
            `optgen.optim.list_optimizers()`, and `["params"]` holds arguments of its class.

    Returns:
        The configuration without the optimizer and with `zero_allow_untested_optimizer`, and the
        function that makes the optimizer. Both are arguments of `deepspeed.initialize`.

    Raises:
        ValueError: the configuration names no optimizer, or one that is unknown; its arguments
            cannot be read, or name the optimizer or the model; or an argument is "auto", which
            DeepSpeed does not fill in here.
    """
    loaded = dict(config) if isinstance(config, Mapping) else _load(Path(config))
    section = loaded.pop("optimizer", None)
    if not isinstance(section, Mapping) or "type" not in section:
        raise ValueError(
            'the configuration names no optimizer: write "optimizer": {"type": "lion", '
            '"params": {"lr": 1e-4}}'
        )
    params = read_arguments(section.get("params"))
    for key, value in params.items():
        if value == "auto":
            raise ValueError(f'optimizer.params.{key} is "auto": write its value')
    name = known_name(section["type"], list_optimizers())
    loaded["zero_allow_untested_optimizer"] = True
    return loaded, partial(create_optimizer, name=name, **params)


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded
