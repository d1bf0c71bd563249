"""Find optimizers by their names, and make one for a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.optim._param_groups import param_groups
from optgen.optim._published import PUBLISHED, published

_ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    # timm
    "momentum": ("sgd", {"momentum": 0.9}),
    "nesterov": ("sgd", {"momentum": 0.9, "nesterov": True}),
    "nadamw": ("nadam", {"decoupled_weight_decay": True}),
    "adoptw": ("adopt", {"decouple": True}),
    "nlars": ("lars", {"momentum": 0.9, "nesterov": True}),
    # Hugging Face's Trainer
    "adamw_torch": ("adamw", {}),
    "adamw_torch_fused": ("adamw", {}),
    "adamw_bnb_8bit": ("adamw_8bit", {}),
    "lion_32bit": ("lion", {}),
    "galore_adamw": ("galore", {}),
    "apollo_adamw": ("apollo", {}),
}


def list_optimizers(pattern: str = "*") -> list[str]:
    """Return the names that `create_optimizer` takes and that match a pattern, as in "ada*"."""
    names = (*mirrored_classes(), *PUBLISHED, *_ALIASES)
    return sorted(name for name in names if fnmatchcase(name, pattern.lower()))


def optimizer_class(name: str) -> type[Optimizer]:
    """Return the class of `optgen.optim` that a name stands for; case and `_` do not matter.

    Raises:
        ValueError: the name is unknown, or stands for a class with arguments.
    """
    cls, preset = _class_and_preset(name)
    if preset:
        words = ", ".join(f"{key}={value!r}" for key, value in preset.items())
        raise ValueError(
            f"{name!r} stands for {cls.__name__} with {words}: use that class with these "
            "arguments, or call create_optimizer"
        )
    return cls


def create_optimizer(
    model_or_params: nn.Module | Iterable[Any],
    name: str,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    layer_decay: float | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    **arguments: Any,
) -> Any:
    """Make an optimizer by its name.

    Args:
        model_or_params: a model, whose parameters are grouped by `param_groups`; or parameters or
            groups, which stay as they are.
        name: a name of `list_optimizers()`.
        lr: the learning rate; None is the optimizer's default.
        weight_decay: the weight decay; None is the optimizer's default. With a model, biases and
            other vectors get none.
        layer_decay: see `param_groups`; for models only.
        options: options by patterns of names; see `param_groups`; for models only.
        **arguments: further arguments of the class.

    Raises:
        ValueError: the name is unknown; or `layer_decay` or `options` comes with parameters
            instead of a model.
    """
    cls, preset = _class_and_preset(name)
    arguments = {**preset, **arguments}
    if lr is not None:
        arguments["lr"] = lr
    if isinstance(model_or_params, nn.Module):
        decay = {} if weight_decay is None else {"weight_decay": weight_decay}
        groups: Any = param_groups(
            model_or_params, options, lr=lr, layer_decay=layer_decay, **decay
        )
        return cls(groups, **arguments)
    if layer_decay is not None or options is not None:
        raise ValueError("layer_decay and options go by names: give the model, not its parameters")
    if weight_decay is not None:
        arguments["weight_decay"] = weight_decay
    return cls(_as_list(model_or_params), **arguments)


def _as_list(params: Iterable[Any]) -> Any:
    """Return a single tensor as a list of one; else the parameters themselves."""
    return [params] if isinstance(params, Tensor) else params


def mirrored_classes() -> dict[str, type[Optimizer]]:
    """Return the mirror's classes by their names in lower case."""
    import optgen.optim

    values = (vars(optgen.optim)[name] for name in optgen.optim.__all__)
    classes = (value for value in values if isinstance(value, type) and value is not Optimizer)
    return {cls.__name__.lower(): cls for cls in classes}


def known_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that a name stands for; case and `_` do not matter.

    Raises:
        ValueError: the name stands for no known name.
    """
    by_key = {_key(each): each for each in known}
    if _key(name) in by_key:
        return by_key[_key(name)]
    near = get_close_matches(name.lower(), by_key.values(), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(by_key.values())}"
    raise ValueError(f"no optimizer is called {name!r}: {hint}")


def _class_and_preset(name: str) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class that a name stands for, and the arguments that an alias presets."""
    known = known_name(name, list_optimizers())
    module, preset = _ALIASES.get(known, (known, {}))
    return published(module) if module in PUBLISHED else mirrored_classes()[module], preset


def _key(name: str) -> str:
    """Return a name in lower case, without underscores."""
    return name.lower().replace("_", "")
