"""Result of the track: the classes that step a model's parameters, and their options in each step.

The names of parameters are those of the track's model: `embed.weight`, `blocks.0.attn.q.weight`,
`blocks.0.mlp.fc.bias`, `norm1.gains`, and `proj.weight`, which is the head.
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
"""Returns an optimizer's class. A class is made when it is used, because composing takes time."""
Options = dict[str, Any]
SPECS = Path(__file__).parent / "specs"


def spec_path(name: str) -> Path:
    """Return the path of a spec of this folder."""
    return SPECS / f"{name}.py"


@dataclass(frozen=True)
class Group:
    """The options of a param group.

    Attributes:
        lr: the learning rate.
        schedule: returns the factor of the learning rate in a step.
        options: the options that are constant.
        step_options: returns further options, which the script sets in each step.
    """

    lr: float
    schedule: Schedule
    options: Options = field(default_factory=dict)
    step_options: Callable[[float], Options] = lambda step: {}

    def options_at(self, step: float) -> Options:
        """Return all options of a step."""
        return {**self.options, "lr": self.lr * self.schedule(step), **self.step_options(step)}


@dataclass(frozen=True)
class Result:
    """An accepted result.

    Attributes:
        number: its number in the track's table of results.
        title: a few words about it.
        log: the file that begins with its training script, in the track's folder `results/`.
        steps: the number of steps of the logged training, on which its schedules depend.
        matrix_factory: returns the class that steps the matrices of the blocks.
        matrix_groups: the param groups of these matrices, by parts of names. The first key that
            is a part of a matrix's name chooses its group.
        other_groups: the groups `embed`, `head` and `vectors`. Gains and biases are the vectors;
            other keys are parts of the names of some of them.
        other_factory: returns the class that steps `other_groups`.
        scaled: whether the blocks' projections begin at scaled weights instead of zeros.
        covariance_interval: after how many steps the class of the matrices gets the covariances
            of the inputs of their layers, if ever.
    """

    number: int
    title: str
    log: str
    steps: int
    matrix_factory: ClassFactory
    matrix_groups: Mapping[str, Group]
    other_groups: Mapping[str, Group]
    other_factory: ClassFactory = lambda: AdamW
    scaled: bool = False
    covariance_interval: int | None = None

    def group(self, name: str, param: torch.Tensor) -> Group:
        """Return the group of a parameter."""
        if name in ("embed.weight", "proj.weight"):
            return self.other_groups["embed" if name == "embed.weight" else "head"]
        if param.ndim < 2:
            others = self.other_groups
            return next((others[part] for part in others if part in name), others["vectors"])
        return next(group for part, group in self.matrix_groups.items() if part in name)

    def optimizers(
        self, named: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> list[torch.optim.Optimizer]:
        """Return an optimizer for the blocks' matrices, and one for all other parameters."""
        named_params = list(named)

        def param_groups(groups: Collection[Group]) -> list[dict[str, Any]]:
            members = [
                [param for name, param in named_params if self.group(name, param) is group]
                for group in groups
            ]
            return [
                {"params": params, "as_logged": group, **group.options_at(0)}
                for group, params in zip(groups, members, strict=True)
                if params
            ]

        matrices = param_groups(self.matrix_groups.values())
        others = param_groups(self.other_groups.values())
        return [self.matrix_factory()(matrices), self.other_factory()(others)]


def set_options(optimizers: Iterable[torch.optim.Optimizer], step: float) -> None:
    """Set the options of all groups for a step of the logged training."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.update(group["as_logged"].options_at(step))


def matrix_groups(lr: float, schedule: Schedule, **options: Any) -> dict[str, Group]:
    """Return one group for all matrices of the blocks."""
    return {"": Group(lr, schedule, options)}


def other_groups(
    *schedules: Schedule,
    rates: tuple[float, float, float] = (0.3, 1 / 320, 0.01),
    weight_decay: float = 0.0,
    beta2: float = 0.95,
    step_options: Callable[[float], Options] = lambda step: {},
) -> dict[str, Group]:
    """Return the groups of embedding, head and vectors, with one schedule for all or three."""
    options = {"betas": (0.8, beta2), "eps": 1e-10, "weight_decay": weight_decay}
    three = schedules * 3 if len(schedules) == 1 else schedules
    return {
        name: Group(lr, schedule, options, step_options)
        for name, lr, schedule in zip(("embed", "head", "vectors"), rates, three, strict=True)
    }
