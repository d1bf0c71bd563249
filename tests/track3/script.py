"""A logged script of track 3: its numbers, and its steps in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from track3.muons import Values

Step = Callable[[Tensor, Tensor, Values, Values], Tensor]
"""A function of a parameter, its gradient, its memory and options; it returns the new parameter."""
Schedule = Callable[[int], float]
"""A function of the number of a step; it returns the factor of a learning rate."""
NamedOptions = tuple[tuple[str, Values], ...]
"""Parts of names of matrices, each with the options of matrices whose names contain the part."""


def no_options(step: int) -> Values:
    return {}


@dataclass(frozen=True)
class Script:
    """A logged script.

    Attributes:
        steps: its `train_steps`.
        step: the step of a matrix of the blocks.
        lr: the learning rate of the matrices of the blocks.
        schedule: the schedule of this learning rate.
        adamw_schedules: the schedules of `adamw_lrs`: one for all, or three.
        named_options: options of some matrices of the blocks, by parts of their names.
        options: options of all matrices of the blocks.
        options_at: those options of all matrices of the blocks that depend on the step.
        adamw_lrs: AdamW's learning rates of embedding, head and vectors.
        adamw_weight_decay: AdamW's weight decay.
        adamw_beta2: the second of AdamW's betas.
        vector_step: the step of vectors.
        vector_beta2s: their second betas instead of AdamW's, by parts of their names.
        after_step: a function that changes each parameter after its step.
        test_steps: how many steps a test takes.
        decomposes: whether the script computes eigenvectors.
        reads_inputs: whether matrices get covariances of their inputs, as `memory["inputs"]`: a
            covariance and the matrix of the means of blocks.
    """

    steps: int
    step: Step
    lr: float
    schedule: Schedule
    adamw_schedules: tuple[Schedule, ...]
    named_options: NamedOptions = ()
    options: Values | None = None
    options_at: Callable[[int], Values] = no_options
    adamw_lrs: tuple[float, float, float] = (0.3, 1 / 320, 0.01)
    adamw_weight_decay: float = 0.0
    adamw_beta2: float = 0.95
    vector_step: Step | None = None
    vector_beta2s: tuple[tuple[str, float], ...] = ()
    after_step: Callable[[Tensor, Values, int], Tensor] | None = None
    test_steps: int = 12
    decomposes: bool = False
    reads_inputs: bool = False

    def step_and_options(
        self, name: str, shape: tuple[int, ...]
    ) -> tuple[Step, Callable[[int], Values]]:
        """Return a parameter's step function, and a function from step numbers to its options."""
        if name.startswith("blocks.") and len(shape) > 1:
            matching = (options for part, options in self.named_options if part in name)
            named_options = next(matching, {})
            return self.step, lambda t: {
                "weight_decay": 0.0,
                "soap": False,
                "gated": False,
                "value": False,
                **(self.options or {}),
                **named_options,
                **self.options_at(t),
                "lr": named_options.get("lr", self.lr) * self.schedule(t),
            }
        index = {"embed.weight": 0, "proj.weight": 1}.get(name, 2)
        schedules = self.adamw_schedules
        lr, schedule = self.adamw_lrs[index], schedules[index if len(schedules) > 1 else 0]
        beta2s = (beta2 for part, beta2 in self.vector_beta2s if index == 2 and part in name)
        fixed_options = {
            "betas": (0.8, next(beta2s, self.adamw_beta2)),
            "eps": 1e-10,
            "weight_decay": self.adamw_weight_decay,
        }
        step = self.vector_step if index == 2 and self.vector_step else adamw
        return step, lambda t: {**fixed_options, "lr": lr * schedule(t)}


def adamw(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    """Take a step of torch's AdamW, as the scripts do."""
    if "torch" not in memory:
        fixed_options = {name: options[name] for name in ("betas", "eps", "weight_decay")}
        memory["torch"] = torch.optim.AdamW([p.clone()], **fixed_options)
    (group,) = memory["torch"].param_groups
    (param,) = group["params"]
    param.copy_(p)
    param.grad, group["lr"] = g, options["lr"]
    memory["torch"].step()
    return param.clone()
