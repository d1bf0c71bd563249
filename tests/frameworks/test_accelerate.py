"""Test Accelerate: prepare, clip, accumulate, schedule, save and resume; FSDP2 on two processes."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from distributed import pair
from frameworks.tiny_model import BATCH, LR, Data, Model, deviation, weights
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import lr_scheduler as torch_schedulers

from optgen import optim
from optgen.optim import lr_scheduler

STEPS = 10


class Loop:
    """A user's training loop."""

    def __init__(self, name: str, library: ModuleType, schedules: Any, **options: Any) -> None:
        torch.manual_seed(3)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = Model()
        optimizer = getattr(library, name)(model.parameters(), lr=LR, **options)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model,
            optimizer,
            torch.utils.data.DataLoader(Data(), batch_size=BATCH),
            schedules.StepLR(optimizer, step_size=2, gamma=0.5),
        )

    def train(self, first: int, last: int) -> list[Tensor]:
        batches = [batch for _ in range(3) for batch in self.loader]
        for batch in batches[first:last]:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(**batch)["loss"])
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
        return weights(self.model)


def optgen_loop(name: str, **options: Any) -> Loop:
    return Loop(name, optim, lr_scheduler, **options)


def torch_loop(name: str, **options: Any) -> Loop:
    return Loop(name, torch.optim, torch_schedulers, **options)


CASES = [
    ("AdamW", {}),
    ("Adam", {"fused": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adagrad", {}),
    ("Adafactor", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_training_equals_torchs(name: str, options: dict[str, Any]) -> None:
    loop, reference = optgen_loop(name, **options), torch_loop(name, **options)

    assert type(loop.optimizer.optimizer) is getattr(optim, name)
    params = loop.train(0, STEPS)
    assert deviation(params, reference.train(0, STEPS)) < 1e-6
    assert deviation(params, weights(Model())) > 1e-3
    assert loop.scheduler.get_last_lr() == pytest.approx(reference.scheduler.get_last_lr())
    assert loop.scheduler.get_last_lr()[0] < LR


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "NAdam"])
def test_resumed_training_equals_uninterrupted_training(name: str, tmp_path: Path) -> None:
    expected = optgen_loop(name).train(0, STEPS)

    first = optgen_loop(name)
    first.train(0, 4)
    first.accelerator.save_state(str(tmp_path))
    second = optgen_loop(name)
    second.accelerator.load_state(str(tmp_path))
    # Loading makes NAdam's float32 scalar a float64.
    assert deviation(second.train(4, STEPS), expected) < 1e-8


def test_the_optimizer_is_reached_through_the_wrapper() -> None:
    """The wrapper hides all attributes that torch's optimizers do not have."""
    loop = optgen_loop("AdamW")
    loop.optimizer.optimizer.init_state()

    assert len(loop.optimizer.state) == len(list(loop.model.parameters()))
    assert not hasattr(loop.optimizer, "init_state")


def train_on_two_processes(
    rank: int, name: str, with_optgen: bool, sharded: bool
) -> tuple[list[Tensor], bool]:
    """Train on two processes with DDP or `fully_shard`.

    Return the parameters, and whether all of them are sharded.
    """
    for name_of_rank, name_of_size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        os.environ |= {name_of_rank: str(rank), name_of_size: "2"}
    AcceleratorState._reset_state(reset_partial_state=True)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin if sharded else None)
    if sharded:  # by default Accelerate shards only on accelerators
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    model = Model()
    library = optim if with_optgen else torch.optim
    optimizer = getattr(library, name)(model.parameters(), lr=LR)
    model, optimizer = accelerator.prepare(model, optimizer)
    data = Data()
    for step in range(STEPS):
        start = step * BATCH % len(data) + rank * BATCH // 2
        rows = slice(start, start + BATCH // 2)
        accelerator.backward(model(data.inputs[rows], data.labels[rows])["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    params = list(model.parameters())
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in params]
    return [p.detach().clone() for p in whole], all(isinstance(p, DTensor) for p in params)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", ["AdamW", "RAdam", "SGD", "Adafactor"])
def test_two_processes_train_as_with_torch(name: str, sharded: bool) -> None:
    """Accelerate replaces the parameters by dummies, and the dummies by DTensors."""
    found, is_sharded = pair.run(train_on_two_processes, name, True, sharded)[0]
    expected, _ = pair.run(train_on_two_processes, name, False, False)[0]

    assert is_sharded is sharded
    assert deviation(found, expected) < 1e-6
    assert deviation(found, weights(Model())) > 1e-3
