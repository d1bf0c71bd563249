"""Result of the track: the classes that step a model's parameters, and their options in each step.

The names of parameters are those of the track's model: `embed.weight`, `blocks.0.attn.q.weight`,
`blocks.0.mlp.fc.bias`, `norm1.gains`, `proj.weight`. The last of these is the head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from examples.track3.schedules import Schedule
from optgen.optim import AdamW

ClassFactory = Callable[[], type[Any]]
"""Returns an optimizer's class. Only used classes are made, because composing takes a moment."""
Options = dict[str, Any]
SPECS = Path(__file__).parent / "specs"


def spec(name: str) -> Path:
    """Return the path of a spec of this folder."""
    return SPECS / f"{name}.py"


@dataclass(frozen=True)
class Group:
    """The options of a param group.

    Attributes:
        lr: the learning rate.
        schedule: returns the factor of the learning rate in a step.
        options: the options that stay the same.
        changing: returns the options that a script sets anew in each step.
    """

    lr: float
    schedule: Schedule
    options: Options = field(default_factory=dict)
    changing: Callable[[float], Options] = lambda step: {}

    def at(self, step: float) -> Options:
        """Return the options of a step."""
        return {**self.options, "lr": self.lr * self.schedule(step), **self.changing(step)}


@dataclass(frozen=True)
class Result:
    """An accepted result.

    Attributes:
        number: its number in the table of results.
        title: a few words about it.
        log: the file that begins with its training script, in the track's folder `results/`.
        steps: the number of steps of the logged training, on which its schedules depend.
        matrices: returns the class for the matrices of the blocks.
        hidden: the groups of the blocks' matrices; the first key that a matrix's name contains
            chooses its group.
        others: the groups `embed`, `head` and `vectors`, which holds gains and biases.
        rest: returns the class for the groups of `others`.
        scaled: whether the blocks' projections begin at scaled weights instead of zeros.
    """

    number: int
    title: str
    log: str
    steps: int
    matrices: ClassFactory
    hidden: Mapping[str, Group]
    others: Mapping[str, Group]
    rest: ClassFactory = lambda: AdamW
    scaled: bool = False

    def group(self, name: str, param: torch.Tensor) -> Group:
        """Return the group of a parameter."""
        if name in ("embed.weight", "proj.weight"):
            return self.others["embed" if name == "embed.weight" else "head"]
        if param.ndim < 2:
            return self.others["vectors"]
        return next(group for part, group in self.hidden.items() if part in name)

    def optimizers(
        self, named: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> list[torch.optim.Optimizer]:
        """Return an optimizer for the blocks' matrices, and one for the rest."""
        known = list(named)

        def param_groups(groups: Collection[Group]) -> list[dict[str, Any]]:
            members = [[p for name, p in known if self.group(name, p) is each] for each in groups]
            return [
                {"params": params, "as_logged": group, **group.at(0)}
                for group, params in zip(groups, members, strict=True)
                if params
            ]

        hidden = param_groups(self.hidden.values())
        others = param_groups(self.others.values())
        return [self.matrices()(hidden), self.rest()(others)]


def set_options(optimizers: Iterable[torch.optim.Optimizer], step: float) -> None:
    """Set the options of all groups for a step of the logged training."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.update(group["as_logged"].at(step))


def matrices(lr: float, schedule: Schedule, **options: Any) -> dict[str, Group]:
    """Return one group for all matrices of the blocks."""
    return {"": Group(lr, schedule, options)}


def others(
    *schedules: Schedule,
    rates: tuple[float, float, float] = (0.3, 1 / 320, 0.01),
    weight_decay: float = 0.0,
    beta2: float = 0.95,
    changing: Callable[[float], Options] = lambda step: {},
) -> dict[str, Group]:
    """Return the groups of embedding, head and vectors, with a schedule for all or for each."""
    options = {"betas": (0.8, beta2), "eps": 1e-10, "weight_decay": weight_decay}
    each = schedules * 3 if len(schedules) == 1 else schedules
    return {
        name: Group(lr, schedule, options, changing)
        for name, lr, schedule in zip(("embed", "head", "vectors"), rates, each, strict=True)
    }
