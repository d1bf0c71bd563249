"""Test the examples of docs/offload-frameworks.md on the simulated device, bit for bit.

torch asks once in a process which devices there are. So these tests share no process with others.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import device
import lightning
import pytest
import torch
from frameworks.tiny_model import BATCH, Data
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.config import LRScheduler, Optimizer
from transformers import Trainer

import optgen
from optgen import compose, modifiers

PAGE = Path(__file__).parents[2] / "docs" / "offload-frameworks.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
BLOCKS = {text.split("\n")[0]: re.findall(r"```python\n(.*?)```", text, re.S) for text in SECTIONS}
MASTER = compose("adamw", modifiers.state_dtype("float32"), modifiers.master)


class Model(nn.Module):
    """A network in bfloat16 whose second layer is large enough for the host."""

    def __init__(self, place: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = (6, 96, 96, 2)
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        self.body = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        self.to(torch.bfloat16).to(place)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(inputs.to(torch.bfloat16)).float()
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture(autouse=True)
def _device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    device.load()
    monkeypatch.chdir(tmp_path)
    yield
    device.reset()


def on_cpu(rule: str, params: Any, module: Any = None, **hyper: Any) -> Any:
    """Stand for `optgen.offload`: the composition whose bits it has."""
    assert rule == "adamw"
    return MASTER([*params], **hyper)


def run(title: str, place: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the example of a section on a device; return the names that it defines."""
    model, dataset = Model(place), Data()
    torch.manual_seed(1)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH)
    names: dict[str, Any] = {"model": model, "dataset": dataset, "loader": loader}
    with monkeypatch.context() as patch:
        if place == "cpu":
            patch.setattr(optgen, "offload", on_cpu)
        (block,) = BLOCKS[title]
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def assert_trained_alike(model: nn.Module, reference: nn.Module) -> None:
    """Check that two models have the same bits, and not those that they began with."""
    ours, theirs = (model.cpu().state_dict(), reference.cpu().state_dict())
    for key, value in Model("cpu").state_dict().items():
        assert torch.equal(ours[key], theirs[key])
        assert not torch.equal(ours[key], value) or "bias" in key


@pytest.fixture
def trainer_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that chooses the device of Hugging Face's Trainer."""
    return lambda place: monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", place)


def test_hugging_face(monkeypatch: pytest.MonkeyPatch, trainer_device: Any) -> None:
    trained = []
    for place in ("cpu", "sim"):
        trainer_device(place)
        names = run("Hugging Face Trainer", place, monkeypatch)
        trained.append(names["trainer"].model)
    with names["optimizer"] as optimizer:
        assert {each.device.type for each in host_states(optimizer)} == {"cpu"}
        assert optimizer.report().steps == names["trainer"].state.global_step > 2

    assert next(trained[1].parameters()).device.type == "sim"
    assert_trained_alike(trained[1], trained[0])


def host_states(optimizer: Any) -> list[Tensor]:
    states = [optimizer.state[p] for p in optimizer._host_params]
    assert states
    return [value for values in states for value in values.values()]


def test_hugging_face_resumes(trainer_device: Any) -> None:
    from transformers import TrainingArguments

    trainer_device("sim")

    def trainer() -> Trainer:
        model = Model("sim")
        optimizer = optgen.offload("adamw", model.parameters(), module=model, lr=1e-3)
        args = TrainingArguments(
            "out", max_steps=6, save_steps=4, report_to=[], per_device_train_batch_size=BATCH
        )
        made = Trainer(model=model, args=args, train_dataset=Data(), optimizers=(optimizer, None))
        made.accelerator.device_placement = False
        return made

    whole, resumed = trainer(), trainer()
    whole.train()
    resumed.train(resume_from_checkpoint="out/checkpoint-4")

    assert_trained_alike(resumed.model, whole.model)


class SimAccelerator(CPUAccelerator):
    """The simulated device, as Lightning's interface for accelerators."""

    def setup_device(self, device: torch.device) -> None:
        assert device.type == "sim"


def test_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    plain = lightning.Trainer
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    for place in ("cpu", "sim"):
        accelerator = SimAccelerator() if place == "sim" else CPUAccelerator()
        strategy = SingleDeviceStrategy(torch.device(place), accelerator)
        monkeypatch.setattr(
            lightning,
            "Trainer",
            lambda strategy=strategy, **o: plain(strategy=strategy, **o, **quiet),
        )
        names = run("Lightning", place, monkeypatch)
        trained.append(names["model"])
        (optimizer,) = names["trainer"].optimizers
    with optimizer:
        assert {each.device.type for each in host_states(optimizer)} == {"cpu"}
        assert optimizer.report().steps == names["trainer"].global_step > 2

    assert_trained_alike(trained[1], trained[0])


class Loop:
    """A loop that uses the containers as torchtitan's trainer does."""

    def __init__(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        names = run("torchtitan", place, monkeypatch)
        self.place, self.model = place, names["model"]
        with monkeypatch.context() as patch:
            if place == "cpu":
                patch.setattr(optgen, "offload", on_cpu)
            self.optimizers = names["build_optimizers"]([self.model], Optimizer(lr=1e-2), None)
        config = LRScheduler(warmup_steps=2, decay_ratio=0.5)
        self.schedulers = build_lr_schedulers(self.optimizers, config, 8)

    def train(self, steps: int) -> None:
        data = Data()
        for _ in range(steps):
            self.optimizers.zero_grad()
            self.model(data.inputs.to(self.place), data.labels.to(self.place))["loss"].backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizers.step()
            self.schedulers.step()


def test_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, first, second = (Loop(place, monkeypatch) for place in ("cpu", "sim", "sim"))
    reference.train(8)
    first.train(3)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizers.load_state_dict(first.optimizers.state_dict())
    second.schedulers.load_state_dict(first.schedulers.state_dict())
    second.train(5)
    (optimizer,) = second.optimizers
    with optimizer:
        assert {each.device.type for each in host_states(optimizer)} == {"cpu"}

    assert_trained_alike(second.model, reference.model)


def test_every_example_is_run() -> None:
    assert list(BLOCKS) == ["Hugging Face Trainer", "Lightning", "torchtitan"]
    for (block,) in BLOCKS.values():
        ours = [line for line in block.splitlines() if line and "import" not in line]
        assert len(ours) <= 10
