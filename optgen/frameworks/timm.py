"""timm's factory: optimizers that `create_optimizer_v2` and `--opt` find by a name."""

from __future__ import annotations

from functools import partial
from inspect import signature

from timm.optim import OptimInfo
from timm.optim._optim_factory import default_registry  # timm has no public name for it

from optgen.optim import create_optimizer, list_optimizers
from optgen.optim._create_optimizer import class_and_preset

PREFIX = "optgen-"


def register(*names: str) -> list[str]:
    """Register optimizers with timm, as "optgen-" and their name without underscores.

    timm's factory always gives a weight decay. Without names, all optimizers are registered that
    take one.

    Args:
        *names: names of `optgen.optim.list_optimizers()`.

    Returns:
        The names in timm, such as "optgen-lion".

    Raises:
        ValueError: a name is unknown, or its optimizer takes no weight decay.
    """
    infos = [info for name in names or list_optimizers() if (info := _info(name)) is not None]
    if names and len(infos) < len(names):
        without = [name for name in names if _info(name) is None]
        raise ValueError(
            f"{', '.join(without)}: timm gives every optimizer a weight decay, and this one takes "
            "none; make it with optgen.optim.create_optimizer"
        )
    for info in infos:
        default_registry.register(info)
    return [info.name for info in infos]


def _info(name: str) -> OptimInfo | None:
    """Return what timm wants to know about an optimizer; None if it takes no weight decay."""
    cls, _ = class_and_preset(name)
    arguments = signature(cls).parameters
    if "weight_decay" not in arguments:
        return None
    return OptimInfo(
        name=PREFIX + name.lower().replace("_", ""),
        opt_class=partial(create_optimizer, name=name),
        description=f"optgen.optim.{cls.__name__}",
        has_eps="eps" in arguments,
        has_momentum="momentum" in arguments,
        has_betas="betas" in arguments,
        num_betas=len(arguments["betas"].default) if "betas" in arguments else 2,
    )
