"""Find optimizers by their names, and make one for a model, in groups by its parameters' names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.optim._chained import (
    ChainedOptimizer,
    OptimizerCall,
    Patterns,
    check_accepts_all,
    matching_names,
    share_model,
)
from optgen.optim._published import PUBLISHED, published_class

_ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    # timm
    "momentum": ("sgd", {"momentum": 0.9}),
    "nesterov": ("sgd", {"momentum": 0.9, "nesterov": True}),
    "adoptw": ("adopt", {"decouple": True, "clip_exp": 0.333}),
    "nlars": ("lars", {"momentum": 0.9, "nesterov": True}),
    # Hugging Face's Trainer
    "adamw_torch": ("adamw", {}),
    "adamw_torch_fused": ("adamw", {}),
    "adamw_bnb_8bit": ("adamw_8bit", {}),
    "lion_32bit": ("lion", {}),
    "galore_adamw": ("galore", {}),
    "apollo_adamw": ("apollo", {"rank": 128}),
}

OptimizerName = str | os.PathLike[str] | type[Optimizer]
"""An optimizer for `create_optimizer`: a name, a class, or a spec; see there."""


def list_optimizers(pattern: str = "*") -> list[str]:
    """Return the names that `create_optimizer` takes and that match a pattern, as in "ada*"."""
    names = (*mirrored_classes(), *PUBLISHED, *_ALIASES)
    return sorted(name for name in names if fnmatchcase(name, pattern.lower()))


def optimizer_class(name: str) -> type[Optimizer]:
    """Return the class of `optgen.optim` that a name stands for; case and `_` do not matter.

    Raises:
        ValueError: the name is unknown, or stands for a class with arguments.
    """
    cls, preset = class_and_preset(name)
    if preset:
        arguments = ", ".join(f"{key}={value!r}" for key, value in preset.items())
        raise ValueError(
            f"{name!r} stands for {cls.__name__} with {arguments}: use that class with these "
            "arguments, or call create_optimizer"
        )
    return cls


def create_optimizer(
    model_or_params: nn.Module | Iterable[Any],
    name: OptimizerName | Any,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    layer_decay: float | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    others: OptimizerName | tuple[OptimizerName, Mapping[str, Any]] | Any = None,
    others_names: Iterable[str] = (),
    first_names: Iterable[str] = (),
    **arguments: Any,
) -> Any:
    """Make an optimizer by its name, or two as one, such as Muon for matrices and AdamW for others.

    Args:
        model_or_params: a model, whose parameters are grouped by `param_groups`; or parameters or
            groups, which stay as they are.
        name: a name of `list_optimizers()`; a class of optgen, of torch, or one that `load` or
            `compose` made; the path of a spec file; or a function decorated with `@optimizer(…)`.
        lr: the learning rate; None is the optimizer's default.
        weight_decay: the weight decay; None is the optimizer's default. With a model, biases and
            other vectors get none in either case.
        layer_decay: see `param_groups`; for models only.
        options: options by patterns of names; see `param_groups`; for models only.
        others: a second optimizer, in the same forms as `name`, or as a pair of it and a dict of
            its arguments; for models only. The first optimizer gets the matrices inside the model:
            weights of layers, convolutions and batches of matrices, by a view where it needs one.
            The second gets all others: embeddings, tables, output layers, vectors. The result is a
            `ChainedOptimizer`, whose `split` says who got what.
        others_names: patterns of names of further parameters for the second optimizer, as in
            `["head.*"]`.
        first_names: patterns of names of further parameters for the first optimizer.
        **arguments: further arguments of the class.

    Raises:
        ValueError: the name is unknown; a parameter of the model needs a second optimizer; one of
            two optimizers gets no parameter; a pattern matches no name; or an argument for two
            optimizers comes with one, or an argument for models with parameters.
        TypeError: an optimizer is given in another form; the class has no such argument, or its
            groups no such option; or patterns are no list.
    """
    for option, patterns in {"others_names": others_names, "first_names": first_names}.items():
        if isinstance(patterns, str):
            raise TypeError(f"{option} is a list of patterns: write {option}=[{patterns!r}]")
    if others is None and (others_names or first_names):
        raise ValueError("others_names and first_names share a model between two: give others too")
    if not isinstance(model_or_params, nn.Module):
        if any(value is not None for value in (layer_decay, options, others)):
            raise ValueError(
                "layer_decay, options and others go by names: give the model, not its parameters"
            )
        cls, preset = class_and_preset(name)
        lr_and_decay = {"lr": lr, "weight_decay": weight_decay}
        given = {key: value for key, value in lr_and_decay.items() if value is not None}
        return cls(_as_list(model_or_params), **{**preset, **arguments, **given})
    grouping = {"options": options, "layer_decay": layer_decay}
    first_call = _call_for_model(
        model_or_params, name, {**arguments, "lr": lr, "weight_decay": weight_decay}, grouping
    )
    if others is None:
        check_accepts_all(_as_written(name), first_call)
        return first_call.make()
    second_name, second_arguments = _name_and_arguments(others)
    if layer_decay is not None and second_arguments.get("lr") is None:
        raise ValueError(
            "layer_decay scales the learning rates of both optimizers: give others a rate, too, as "
            f'in others=({_as_written(second_name)}, {{"lr": 1e-3}})'
        )
    second_call = _call_for_model(
        model_or_params, second_name, {"weight_decay": weight_decay, **second_arguments}, grouping
    )
    all_patterns = Patterns(tuple(first_names), tuple(others_names))
    return share_model(model_or_params, first_call, second_call, all_patterns)


def _name_and_arguments(others: Any) -> tuple[Any, dict[str, Any]]:
    """Return the second optimizer and its arguments.

    Raises:
        TypeError: `others` is a tuple, a list or a dict, but no pair of an optimizer and a dict.
    """
    if not isinstance(others, tuple | list | Mapping):
        return others, {}
    match others:
        case (name, Mapping() as arguments) if isinstance(others, tuple):
            return name, dict(arguments)
    hint = '("adamw", {"lr": 1e-3})'
    if len(others) == 2 and isinstance(others[1], int | float):
        hint = f'({_as_written(others[0])}, {{"lr": {others[1]!r}}})'
    raise TypeError(
        f"others is an optimizer, or a pair of an optimizer and a dict of its arguments, as in "
        f"others={hint}; it is {others!r}"
    )


def _as_written(name: Any) -> str:
    """Return an optimizer as a call has it: a name in quotes, or the name of a class."""
    return f'"{name}"' if isinstance(name, str) else getattr(name, "__name__", repr(name))


def _call_for_model(
    model: nn.Module, name: Any, arguments: dict[str, Any], grouping: Mapping[str, Any]
) -> OptimizerCall:
    """Return the constructor call of an optimizer of all parameters of a model."""
    cls, preset = class_and_preset(name)
    lr, weight_decay = arguments.pop("lr", None), arguments.pop("weight_decay", None)
    if weight_decay is None:
        weight_decay = _default_decay(cls)
    groups = param_groups(model, lr=lr, weight_decay=weight_decay, **grouping)
    rate = {} if lr is None else {"lr": lr}
    return OptimizerCall(cls, groups, {**preset, **arguments, **rate})


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
    own = (Optimizer, ChainedOptimizer, optgen.optim.SAM)
    classes = (value for value in values if isinstance(value, type) and value not in own)
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


def class_and_preset(name: Any) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class of an optimizer in any form, and the arguments that an alias presets.

    Raises:
        ValueError: the name is unknown.
        TypeError: it is no optimizer, or one that is already made.
    """
    if isinstance(name, type) and issubclass(name, Optimizer):
        return name, {}
    if isinstance(name, Optimizer):
        title = type(name).__name__
        raise TypeError(f"give the class {title} and its arguments, not an optimizer that is made")
    if not isinstance(name, str) or name.endswith(".py"):
        return _loaded_class(name), {}
    listed_name = known_name(name, list_optimizers())
    class_name, preset = _ALIASES.get(listed_name, (listed_name, {}))
    if class_name in PUBLISHED:
        return published_class(class_name), preset
    return mirrored_classes()[class_name], preset


def _loaded_class(spec: Any) -> type[Optimizer]:
    """Load a spec; only this imports the generator."""
    from optgen.jit import load
    from optgen.spec.declare import Spec

    if isinstance(spec, nn.Module):
        raise TypeError(
            "create_optimizer takes the model first, and then the optimizer: "
            'create_optimizer(model, "adamw", lr=1e-3)'
        )
    if not isinstance(spec, str | os.PathLike | Spec):
        raise TypeError(
            "an optimizer is a name of list_optimizers(), a class, the path of a spec file or a "
            f"function decorated with @optimizer(…), not {spec!r}"
        )
    return load(spec)


def _comparison_key(name: str) -> str:
    """Return a name in lower case, without underscores."""
    return name.lower().replace("_", "")


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
