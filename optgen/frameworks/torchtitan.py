"""torchtitan: optimizers of optgen, also offloaded ones, by name in a job's configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

from torch import nn
from torchtitan.components.optimizer import (
    OptimizersContainer,
    OptimizersInBackwardContainer,
)
from torchtitan.components.optimizer import build_optimizers as build_of_torchtitan
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec

from optgen.frameworks.arguments import read_arguments
from optgen.offloading import offload
from optgen.optim import create_optimizer
from optgen.optim._create_optimizer import class_and_preset
from optgen.runtime import GeneratedOptimizer


@dataclass
class Optimizer:
    """The keys of the section [optimizer] that torchtitan lacks."""

    arguments: str = ""
    """Further arguments of the optimizer, as in a call: betas=(0.9, 0.95), eps=1e-6"""

    offload: bool = False
    """Keep the states on the host and step there: optgen.offload"""


@dataclass
class JobConfig:
    """The keys that torchtitan lacks; it merges them with its own by `custom_config_module`."""

    optimizer: Optimizer = field(default_factory=Optimizer)


def build_optimizers(
    model_parts: Sequence[nn.Module], config: Any, parallel_dims: Any, ft_manager: Any = None
) -> OptimizersContainer:
    """Make the optimizer that [optimizer] names, for each part of a model.

    `lr` and `weight_decay` are the configuration's. So are `betas` and `eps`, if the class takes
    them in torchtitan's form: two numbers, and one. `implementation` "fused" leaves the choice of
    the lowering to optgen.

    Args:
        model_parts: modules; each gets an optimizer of its own.
        config: torchtitan's section [optimizer], with or without the keys of `Optimizer`.
        parallel_dims: not used; torchtitan gives it.
        ft_manager: TorchFT's manager, which must not be enabled.

    Raises:
        ValueError: the name is unknown, the arguments cannot be read, or an option is chosen that
            goes with no optimizer of optgen.
    """
    if ft_manager is not None and ft_manager.enabled:
        raise ValueError("optgen's optimizers were not tried with TorchFT: turn it off")
    is_offloaded = getattr(config, "offload", False)
    if config.early_step_in_backward and is_offloaded:
        raise ValueError("[optimizer] offload and early_step_in_backward exclude each other")
    arguments = _arguments(config)
    if is_offloaded:
        cls, preset = class_and_preset(config.name)
        if not issubclass(cls, GeneratedOptimizer):
            raise ValueError(f"{cls.__name__} has no rule, so its step cannot be offloaded")
        make = partial(offload, cls, **preset)
    else:
        make = partial(create_optimizer, name=config.name)
    in_backward = config.early_step_in_backward
    container = OptimizersInBackwardContainer if in_backward else OptimizersContainer
    return container(list(model_parts), make, arguments)


def _arguments(config: Any) -> dict[str, Any]:
    """Return the arguments that a section [optimizer] gives to a class."""
    cls, preset = class_and_preset(config.name)
    accepted = signature(cls).parameters
    in_config = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    defaults = {key: accepted[key].default for key in in_config if key in accepted}
    arguments = {
        key: in_config[key]
        for key, default in defaults.items()
        if key not in preset and _has_form_of(in_config[key], default)
    }
    if config.implementation != "fused" and not getattr(config, "offload", False):
        arguments["foreach"] = config.implementation == "foreach"
    return arguments | read_arguments(getattr(config, "arguments", ""))


def _has_form_of(value: Any, default: Any) -> bool:
    """Tell whether both are one number, or both are as many numbers."""
    if isinstance(value, tuple):
        return isinstance(default, tuple) and len(default) == len(value)
    return not isinstance(default, tuple)


def register(*models: str) -> None:
    """Let torchtitan's models of these names take optimizers of optgen.

    Args:
        *models: names as in [model] name, such as "llama3".

    Raises:
        ValueError: torchtitan has no such model, or its model builds optimizers in a way of its
            own, which would be lost.
    """
    for name in models:
        spec = get_train_spec(name)
        if spec.build_optimizers_fn is not build_of_torchtitan:
            raise ValueError(
                f"{name} builds its optimizers by {spec.build_optimizers_fn.__name__}, which does "
                "more than torchtitan's build_optimizers: write a TrainSpec with a function that "
                "calls optgen.frameworks.torchtitan.build_optimizers and does the rest"
            )
        register_train_spec(name, replace(spec, build_optimizers_fn=build_optimizers))
