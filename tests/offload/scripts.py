"""Random training scripts, and what they leave: on the CPU without offload, and offloaded.

A script is a list of actions, drawn from a seed. It runs the same on any device. The schedule of
the device (latencies, sizes of slots) is drawn from another seed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

import optgen
from optgen.offloading.clipping import clip_factor, gradient_norm
from optgen.offloading.host_rule import FACTOR, offload_rule

WIDTH = 24
RULES: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-2},
    "sgd": {"lr": 0.1, "momentum": 0.9},
    "lion": {"lr": 1e-3},
    "adagrad": {"lr": 1e-2},
    "lamb": {"lr": 1e-2},
    "adafactor": {"lr": 1e-2},
}


def network(device: str = "cpu", seed: int = 0) -> nn.Sequential:
    """Return a model with a tied weight."""
    torch.manual_seed(seed)
    layers = [nn.Linear(WIDTH, WIDTH).to(torch.bfloat16).to(device) for _ in range(4)]
    layers[2].weight = layers[0].weight  # now: a move to another device may untie it
    return nn.Sequential(*(each for layer in layers for each in (layer, nn.Tanh())))


def inputs(count: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 8, WIDTH, generator=generator).bfloat16()


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    value: Tensor = model(batch).float().square().mean()
    return value


@dataclass(frozen=True)
class Script:
    """A training as data.

    Each entry of `steps` has the number of backward passes of a step, and what happens before it:
    "drop" takes a gradient away, "weights" changes weights in place, "rate" a learning rate,
    "average" reads all weights, and "reload" goes on with a new optimizer that loads the state of
    the last one.
    """

    rule: str
    seed: int
    groups: bool
    clip_norm: float | None
    schedules: bool
    steps: tuple[tuple[int, str], ...]

    @classmethod
    def drawn(cls, seed: int, passes: tuple[int, ...] = (1, 1, 2)) -> Script:
        rng = random.Random(seed)
        events = ["", "", "", "drop", "weights", "rate", "average", "reload"]
        steps = tuple((rng.choice(passes), rng.choice(events)) for _ in range(6))
        clip_norm = rng.choice([None, 0.01, 10.0])
        rule, groups = rng.choice(list(RULES)), rng.random() < 0.5
        return cls(rule, seed, groups, clip_norm, rng.random() < 0.5, steps)

    def params(self, model: nn.Module) -> Any:
        """Return the model's parameters, or groups of them."""
        if not self.groups:
            return list(model.named_parameters())
        named = list(model.named_parameters())
        return [
            {"params": [each for each in named if each[1].dim() > 1]},
            {"params": [each for each in named if each[1].dim() < 2], "lr": 5e-3},
        ]


@dataclass
class Run:
    """A run of a script: the model, and the optimizer that steps now."""

    model: nn.Module
    make: Callable[[Any, nn.Module], Optimizer]
    optimizer: Optimizer = field(init=False)
    averages: list[Tensor] = field(default_factory=list)

    def run(self, script: Script, device: str) -> list[Tensor]:
        """Run a script; return the weights, and averages of them."""
        self.optimizer = self.make(script.params(self.model), self.model)
        scheduler = StepLR(self.optimizer, 2, 0.7) if script.schedules else None
        batches = iter(inputs(sum(passes for passes, _ in script.steps), script.seed))
        for passes, event in script.steps:
            for _ in range(passes):
                loss(self.model, next(batches).to(device)).backward()
            self._do(event, script)
            self.optimizer.step()
            if scheduler is not None:
                scheduler.step()
            self.optimizer.zero_grad()
        if hasattr(self.optimizer, "synchronize"):
            self.optimizer.synchronize()
        left = [*self.model.parameters(), *self.averages]
        return [each.detach().cpu() for each in left]

    def _do(self, event: str, script: Script) -> None:
        first = next(self.model.parameters())
        if event == "drop":
            first.grad = None
        elif event == "weights":
            with torch.no_grad():
                first.mul_(0.5)
        elif event == "average":
            now = [param.detach() for param in self.model.parameters()]
            before = self.averages or [torch.zeros_like(param) for param in now]
            self.averages = [a.lerp(b, 0.5) for a, b in zip(before, now, strict=True)]
        elif event == "rate":
            self.optimizer.param_groups[-1]["lr"] *= 0.5
        elif event == "reload" and not script.schedules:
            saved = copy.deepcopy(self.optimizer.state_dict())
            close = getattr(self.optimizer, "close", None)
            self.optimizer = self.make(script.params(self.model), self.model)
            self.optimizer.load_state_dict(saved)
            if close is not None:
                close()


def reference(script: Script, norms: tuple[float, ...] = ()) -> list[Tensor]:
    """Return the weights that the composition leaves on the CPU.

    `norms` are those of an offloaded run, one for each step. They are checked, and clip: in which
    order a device sums is its own business.
    """
    cls, given = offload_rule(script.rule, script.clip_norm is not None).device, iter(norms)

    def make(params: Any, model: nn.Module) -> Optimizer:
        optimizer: Optimizer = cls(params, **RULES[script.rule])

        def clip(own: Any, args: Any, kwargs: Any) -> None:
            norm = next(given)
            own_norm = gradient_norm([p.grad for p in model.parameters() if p.grad is not None])
            assert abs(norm - own_norm) <= 1e-6 * own_norm
            for group in own.param_groups:
                group[FACTOR] = clip_factor(norm, script.clip_norm or 0.0)

        if norms:
            optimizer.register_step_pre_hook(clip)
        return optimizer

    return Run(network(), make).run(script, "cpu")


def offloaded(
    script: Script, device: str, **options: Any
) -> tuple[list[Tensor], tuple[float, ...]]:
    """Return the weights that an offloaded training leaves, and the norms of its steps."""
    made: list[Any] = []
    norms: list[float] = []

    def note_norm(optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer.grad_norm is not None:
            norms.append(optimizer.grad_norm)

    def make(params: Any, model: nn.Module) -> Optimizer:
        module = {"module": model} if options.get("hide") == "forward" else {}
        optimizer = optgen.offload(
            script.rule,
            params,
            clip_norm=script.clip_norm,
            keep_on_device=0,
            time_limit=30.0,
            **{"bucket_bytes": 4096, "slots": 2, **options},
            **module,
            **RULES[script.rule],
        )
        optimizer.register_step_post_hook(note_norm)
        made.append(optimizer)
        return optimizer

    try:
        return Run(network(device), make).run(script, device), tuple(norms)
    finally:
        for each in made:
            each.close()
