"""Find optimizers by their names, and make one for a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.optim import _two_optimizers
from optgen.optim._param_groups import param_groups
from optgen.optim._published import PUBLISHED, published_class

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
        arguments = ", ".join(f"{key}={value!r}" for key, value in preset.items())
        raise ValueError(
            f"{name!r} stands for {cls.__name__} with {arguments}: use that class with these "
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
    others: str | tuple[str, Mapping[str, Any]] | None = None,
    others_names: Iterable[str] = (),
    **arguments: Any,
) -> Any:
    """Make an optimizer by its name, or two as one, such as Muon for matrices and AdamW for others.

    Args:
        model_or_params: a model, whose parameters are grouped by `param_groups`; or parameters or
            groups, which stay as they are.
        name: a name of `list_optimizers()`.
        lr: the learning rate; None is the optimizer's default.
        weight_decay: the weight decay; None is the optimizer's default. With a model, biases and
            other vectors get none in either case.
        layer_decay: see `param_groups`; for models only.
        options: options by patterns of names; see `param_groups`; for models only.
        others: a second optimizer, by its name or as `(name, arguments)`; for models only. It gets
            the parameters that the first one cannot take, embeddings, and the last `Linear` if it
            has a row for each entry of the first embedding. The result is one optimizer, whose
            `members` are the two.
        others_names: patterns of names of further parameters for the second optimizer, as in
            `["head.*"]`.
        **arguments: further arguments of the class.

    Raises:
        ValueError: the name is unknown; a parameter of the model needs a second optimizer; a
            pattern matches no name; or an argument for models comes with parameters.
    """
    if not isinstance(model_or_params, nn.Module):
        if any((layer_decay is not None, options is not None, others is not None, others_names)):
            raise ValueError(
                "layer_decay, options and others go by names: give the model, not its parameters"
            )
        cls, preset = _class_and_preset(name)
        lr_and_decay = {"lr": lr, "weight_decay": weight_decay}
        given = {key: value for key, value in lr_and_decay.items() if value is not None}
        return cls(_as_list(model_or_params), **{**preset, **arguments, **given})
    model, grouping = model_or_params, {"options": options, "layer_decay": layer_decay}
    first_call = _call_for_model(
        model, name, arguments, lr=lr, weight_decay=weight_decay, **grouping
    )
    if others is None:
        _two_optimizers.check_accepts_all(name, first_call)
        cls, groups, arguments = first_call
        return cls(groups, **arguments)
    second_name, second_arguments = (others, {}) if isinstance(others, str) else others
    second_arguments = dict(second_arguments)
    second_call = _call_for_model(
        model,
        second_name,
        second_arguments,
        lr=second_arguments.pop("lr", None),
        weight_decay=second_arguments.pop("weight_decay", weight_decay),
        **grouping,
    )
    return _two_optimizers.share_model(model, first_call, second_call, others_names)


def _call_for_model(
    model: nn.Module,
    name: str,
    arguments: Mapping[str, Any],
    *,
    lr: float | None,
    weight_decay: float | None,
    **grouping: Any,
) -> _two_optimizers.OptimizerCall:
    """Return the constructor call of an optimizer of all parameters of a model."""
    cls, preset = _class_and_preset(name)
    if weight_decay is None:
        weight_decay = _default_decay(cls)
    groups = param_groups(model, lr=lr, weight_decay=weight_decay, **grouping)
    return cls, groups, {**preset, **arguments, **({} if lr is None else {"lr": lr})}


def _default_decay(cls: type[Optimizer]) -> float | None:
    """Return a class's default weight decay; None if it is 0, or the class has no such argument."""
    argument = signature(cls).parameters.get("weight_decay")
    default = argument.default if argument else None
    return default if isinstance(default, int | float) and default else None


def _as_list(params: Iterable[Any]) -> Any:
    """Put a single tensor into a list; return other parameters as they are."""
    return [params] if isinstance(params, Tensor) else params


def mirrored_classes() -> dict[str, type[Optimizer]]:
    """Return the classes that torch.optim has too, by their names in lower case."""
    import optgen.optim

    values = (vars(optgen.optim)[name] for name in optgen.optim.__all__)
    classes = (value for value in values if isinstance(value, type) and value is not Optimizer)
    return {cls.__name__.lower(): cls for cls in classes}


def known_name(name: str, known_names: Iterable[str]) -> str:
    """Return the known name that a name stands for; case and `_` do not matter.

    Raises:
        ValueError: the name stands for no known name.
    """
    by_key = {_comparison_key(each): each for each in known_names}
    if _comparison_key(name) in by_key:
        return by_key[_comparison_key(name)]
    close_names = get_close_matches(name.lower(), by_key.values(), 1)
    if close_names:
        hint = f"did you mean {close_names[0]!r}?"
    else:
        hint = f"there are {', '.join(by_key.values())}"
    raise ValueError(f"no optimizer is called {name!r}: {hint}")


def _class_and_preset(name: str) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class that a name stands for, and the arguments that an alias presets."""
    listed_name = known_name(name, list_optimizers())
    class_name, preset = _ALIASES.get(listed_name, (listed_name, {}))
    if class_name in PUBLISHED:
        return published_class(class_name), preset
    return mirrored_classes()[class_name], preset


def _comparison_key(name: str) -> str:
    """Return a name in lower case, without underscores."""
    return name.lower().replace("_", "")
