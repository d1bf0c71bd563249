"""Divide a model between two optimizers, such as Muon for matrices and AdamW for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.optim._chained import ChainedOptimizer

Groups = list[dict[str, Any]]
Part = tuple[Any, Groups, dict[str, Any]]
"""The class of an optimizer, its param groups, and the other arguments of its constructor."""


def check_all_taken(name: str, part: Part) -> None:
    """Raise a ValueError if the class cannot take a parameter of its groups."""
    refused = _refused(part)
    if not refused:
        return
    first = next(iter(refused))
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    raise ValueError(
        f"{part[0].__name__} cannot take {first!r} of shape {tuple(refused[first].shape)}{more}: "
        f'give them to a second optimizer, as in create_optimizer(model, "{name}", '
        'others=("adamw", {"lr": 1e-3}))'
    )


def divided(model: nn.Module, first: Part, second: Part, patterns: Iterable[str]) -> Optimizer:
    """Return an optimizer of two, which share the parameters of a model.

    The second takes what the first cannot take, embeddings, the output layer, and the names that
    match a pattern.

    Raises:
        ValueError: a pattern matches no name.
    """
    names = {name for group in first[1] for name in group["param_names"]}
    others = {*_refused(first)} | _embeddings_and_output(model) & names
    others |= _matching(names, patterns)
    parts = [_restricted(first, names - others), _restricted(second, others)]
    return ChainedOptimizer(cls(groups, **given) for cls, groups, given in parts if groups)


def _refused(part: Part) -> dict[str, Tensor]:
    """Return the parameters that a class cannot take, by name; a group with a view has none."""
    cls, groups, _ = part
    check = getattr(cls, "_check_param", None)
    return {
        name: param
        for group in groups
        for name, param in zip(group["param_names"], group["params"], strict=True)
        if check is not None and group.get("view") is None and not _takes(check, param)
    }


def _embeddings_and_output(model: nn.Module) -> set[str]:
    """Return the names of the weights of embeddings, and of a language model's output layer.

    The output layer is the last `Linear`, if it has a row for each entry of the first embedding.
    """
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    chosen = {id(embedding.weight) for embedding in embeddings}
    if embeddings and linears and linears[-1].out_features == embeddings[0].num_embeddings:
        chosen.add(id(linears[-1].weight))
    return {name for name, param in model.named_parameters() if id(param) in chosen}


def _matching(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Return the names that match a pattern.

    Raises:
        ValueError: a pattern matches no name.
    """
    known, chosen = [*names], set[str]()
    for pattern in patterns:
        matched = {name for name in known if fnmatchcase(name, pattern)}
        if not matched:
            raise ValueError(f"no trainable parameter is called {pattern!r}")
        chosen |= matched
    return chosen


def _restricted(part: Part, names: set[str]) -> Part:
    """Return a part with the named parameters only, without empty groups."""
    cls, groups, arguments = part
    results = []
    for group in groups:
        pairs = zip(group["param_names"], group["params"], strict=True)
        kept = {name: param for name, param in pairs if name in names}
        if kept:
            results.append({**group, "params": [*kept.values()], "param_names": [*kept]})
    return cls, results, arguments


def _takes(check: Callable[[Tensor], None], param: Tensor) -> bool:
    try:
        check(param)
    except ValueError:
        return False
    return True
