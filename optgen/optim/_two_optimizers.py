"""Divide a model between two optimizers, such as Muon for matrices and AdamW for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.optim._chained import ChainedOptimizer

Groups = list[dict[str, Any]]
OptimizerCall = tuple[Any, Groups, dict[str, Any]]
"""The class of an optimizer, its param groups, and the other arguments of its constructor."""


def check_accepts_all(name: str, call: OptimizerCall) -> None:
    """Raise a ValueError if the class cannot take a parameter of its groups."""
    cls, _, _ = call
    refused_params = _refused_params(call)
    if not refused_params:
        return
    name_of_first, first_param = next(iter(refused_params.items()))
    more = f" and {len(refused_params) - 1} more" if len(refused_params) > 1 else ""
    raise ValueError(
        f"{cls.__name__} cannot take {name_of_first!r} of shape {tuple(first_param.shape)}{more}: "
        f'give them to a second optimizer, as in create_optimizer(model, "{name}", '
        'others=("adamw", {"lr": 1e-3}))'
    )


def share_model(
    model: nn.Module, first_call: OptimizerCall, second_call: OptimizerCall, patterns: Iterable[str]
) -> Optimizer:
    """Return two optimizers as one, which share the parameters of a model.

    The second optimizer gets the parameters that the first cannot take, embeddings, the output
    layer, and the parameters whose names match a pattern.

    Raises:
        ValueError: a pattern matches no name.
    """
    _, groups_of_all, _ = first_call
    names = {name for group in groups_of_all for name in group["param_names"]}
    second_names = {*_refused_params(first_call)} | _embeddings_and_output(model) & names
    second_names |= _matching_names(names, patterns)
    first_call = _with_names(first_call, names - second_names)
    second_call = _with_names(second_call, second_names)
    calls = (first_call, second_call)
    return ChainedOptimizer(cls(groups, **arguments) for cls, groups, arguments in calls if groups)


def _refused_params(call: OptimizerCall) -> dict[str, Tensor]:
    """Return the parameters that a class cannot take, by name; groups with a view are skipped."""
    cls, groups, _ = call
    check = getattr(cls, "_check_param", None)
    return {
        name: param
        for group in groups
        for name, param in zip(group["param_names"], group["params"], strict=True)
        if check is not None and group.get("view") is None and not _accepts(check, param)
    }


def _embeddings_and_output(model: nn.Module) -> set[str]:
    """Return the names of the weights of embeddings, and of a language model's output layer.

    The output layer is the last `Linear`, if it has a row for each entry of the first embedding.
    """
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    weight_ids = {id(embedding.weight) for embedding in embeddings}
    if embeddings and linears and linears[-1].out_features == embeddings[0].num_embeddings:
        weight_ids.add(id(linears[-1].weight))
    return {name for name, param in model.named_parameters() if id(param) in weight_ids}


def _matching_names(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Return the names that match a pattern.

    Raises:
        ValueError: a pattern matches no name.
    """
    candidates, matches = [*names], set[str]()
    for pattern in patterns:
        pattern_matches = {name for name in candidates if fnmatchcase(name, pattern)}
        if not pattern_matches:
            raise ValueError(f"no trainable parameter is called {pattern!r}")
        matches |= pattern_matches
    return matches


def _with_names(call: OptimizerCall, names: set[str]) -> OptimizerCall:
    """Return a call with the named parameters only, without empty groups."""
    cls, groups, arguments = call
    results = []
    for group in groups:
        pairs = zip(group["param_names"], group["params"], strict=True)
        named = {name: param for name, param in pairs if name in names}
        if named:
            results.append({**group, "params": [*named.values()], "param_names": [*named]})
    return cls, results, arguments


def _accepts(check: Callable[[Tensor], None], param: Tensor) -> bool:
    try:
        check(param)
    except ValueError:
        return False
    return True
