"""Test random operations on rules with modes: bits of the composition, whatever comes in between.

Steps, changes of the mode, checkpoints of either mode, new groups and changed weights come in an
order that is drawn from a seed.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from offload.schedules import drawn
from offload.test_checkpoints import reloaded
from offload.test_train_and_eval import OPTIONS, RULES
from offload.training import OPTIONS as DEFAULTS
from offload.training import master
from torch import Tensor, nn

import optgen

SHAPES = ((24, 24), (24,), (6, 5), (24, 12), (64,))
OPERATIONS = (
    *("step",) * 6,
    *("mode",) * 4,
    *("save", "load", "resume", "exchange"),
    *("group", "rate", "weights", "data", "decay"),
)


class Part(nn.Module):
    """A module whose gradient is its weight times a tensor."""

    def __init__(self, shape: tuple[int, ...], seed: int, device: str) -> None:
        super().__init__()
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(values.bfloat16().to(device))

    def forward(self, factor: Tensor) -> Tensor:
        return (self.weight.float().square() * factor).sum()


class Model(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(shape, index, device) for index, shape in enumerate(SHAPES))

    def forward(self, factors: dict[int, Tensor]) -> Tensor:
        return sum((self.parts[index](each) for index, each in factors.items()), torch.zeros(()))


@dataclass
class Side:
    """A model and its optimizer, offloaded or on the CPU."""

    rule: str
    options: dict[str, Any] | None  # of `offload`; None for the composition
    known: list[list[int]] = field(default_factory=lambda: [[0, 1], [2]])  # parts, by group
    saved: Any = None
    model: Model = field(init=False)
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.device = "cpu" if self.options is None else "sim"
        self.model = Model(self.device)
        self.optimizer = self.made()

    def made(self) -> Any:
        groups = [
            {"params": [self.weight(each) for each in parts], "lr": 0.05 / (1 + index)}
            for index, parts in enumerate(self.known)
        ]
        rule = RULES[self.rule]()
        if self.options is None:
            return master(rule)(groups)
        options = {**DEFAULTS, **self.options}
        if options.get("hide") == "forward":
            options["module"] = self.model
        return optgen.offload(rule, groups, **options)

    def weight(self, index: int) -> Tensor:
        return self.model.parts[index].weight

    @property
    def trains(self) -> bool:
        return all(group["train_mode"] for group in self.optimizer.param_groups)

    def do(self, operation: str, rng: random.Random, other: Side) -> None:
        """Do an operation: a step, or what the method of its name does."""
        getattr(self, operation)(rng, other)

    def step(self, rng: random.Random, *_: Any, share: float = 0.8) -> None:
        """Step some parameters, in train mode."""
        chosen = [index for parts in self.known for index in parts if rng.random() < share]
        seed = rng.randrange(1000)
        if not self.trains or not chosen:
            return
        factors = {
            index: torch.randn(
                SHAPES[index], generator=torch.Generator().manual_seed(seed + index)
            ).to(self.device)
            for index in chosen
        }
        self.model(factors).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def mode(self, *_: Any) -> None:
        self.optimizer.eval() if self.trains else self.optimizer.train()

    def save(self, *_: Any) -> None:
        self.wait()
        states = self.optimizer.state_dict()
        self.saved = reloaded((self.weights(), states, copy.deepcopy(self.known)))

    def load(self, *_: Any) -> None:
        self.take(self.saved)

    def exchange(self, _: Any, other: Side) -> None:
        """Load what the other side has saved."""
        self.take(other.saved)

    def take(self, saved: Any) -> None:
        if saved is None or saved[2] != self.known:
            return
        self.wait()
        self.optimizer.load_state_dict(copy.deepcopy(saved[1]))
        self.put(saved[0])

    def resume(self, *_: Any) -> None:
        """Go on with a new optimizer."""
        if self.saved is None:
            return
        before, self.known = self.optimizer, copy.deepcopy(self.saved[2])
        if self.options is not None:
            before.close()
        self.optimizer = self.made()
        self.load()

    def group(self, *_: Any) -> None:
        index = sum(map(len, self.known))
        if self.trains and index < len(SHAPES):
            self.known.append([index])
            self.optimizer.add_param_group({"params": [self.weight(index)], "lr": 0.02})

    def rate(self, rng: random.Random, _: Side) -> None:
        rng.choice(self.optimizer.param_groups)["lr"] *= 0.7

    def decay(self, rng: random.Random, _: Side) -> None:
        """Change what the programs of `train` and `eval` read."""
        key = "ema_decay" if "ema_decay" in self.optimizer.param_groups[0] else "weight_decay"
        rng.choice(self.optimizer.param_groups)[key] = rng.choice([0.5, 0.9])

    def are_equal(self, index: int, own: Tensor, other: Tensor) -> bool:
        """Compare bits; the device rounds otherwise when it steps small parameters."""
        if self.weight(index).numel() > (self.options or DEFAULTS)["keep_on_device"]:
            return torch.equal(own, other)
        return torch.allclose(own, other, rtol=0.02, atol=1e-3)

    def weights_(self, rng: random.Random) -> Tensor:
        self.wait()
        return self.weight(rng.randrange(len(SHAPES)))

    @torch.no_grad()
    def change(self, rng: random.Random, *_: Any) -> None:
        self.weights_(rng).mul_(0.5)

    def data(self, rng: random.Random, _: Side) -> None:
        self.weights_(rng).data.mul_(0.5)
        if self.options is not None and self.trains:
            self.optimizer.refresh_masters()

    def wait(self) -> None:
        if self.options is not None:
            self.optimizer.synchronize()

    def weights(self) -> list[Tensor]:
        self.wait()
        return [each.detach().cpu().clone() for each in self.model.parameters()]

    @torch.no_grad()
    def put(self, weights: list[Tensor]) -> None:
        for param, value in zip(self.model.parameters(), weights, strict=True):
            param.copy_(value)


def assert_same(ours: Side, theirs: Side, done: list[str]) -> None:
    for index, pair in enumerate(zip(ours.weights(), theirs.weights(), strict=True)):
        assert ours.are_equal(index, *pair), (index, done)


def assert_same_states(ours: Side, theirs: Side, done: list[str]) -> None:
    own, other = (each.optimizer.state_dict()["state"] for each in (ours, theirs))
    assert own.keys() == other.keys(), done
    for index, states in other.items():
        assert own[index].keys() == states.keys(), (index, done)
        for key, value in states.items():
            assert ours.are_equal(index, own[index][key].cpu(), value), (index, key, done)


@pytest.mark.one_case_in(50)
@pytest.mark.parametrize("seed", range(400))
def test_random_operations(seed: int, sim: Any) -> None:
    rng = random.Random(seed)
    settings, ring = drawn(seed)
    sim.configure(**settings)
    options = {
        "keep_on_device": rng.choice([0, 0, 32]),
        "slots": ring["slots"],
        **OPTIONS[rng.choice([*OPTIONS])],
    }
    rule = rng.choice([*RULES])
    ours, theirs = Side(rule, options), Side(rule, None)
    done = [rule, str(options)]
    try:
        for _ in range(20):
            operation, inner = rng.choice(OPERATIONS), rng.randrange(1 << 30)
            done.append(operation)
            for side, other in ((ours, theirs), (theirs, ours)):
                method = "change" if operation == "weights" else operation
                side.do(method, random.Random(inner), other)
            assert_same(ours, theirs, done)
        for side in (ours, theirs):  # until then, a changed weight has an old master
            side.optimizer.train()
            side.step(random.Random(seed), share=1.0)
        assert_same(ours, theirs, done)
        assert_same_states(ours, theirs, done)
    finally:
        ours.optimizer.close()
