"""Test LightningCLI and the callback of docs/configuration-files.md."""

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from frameworks.configuration_page import distance_from_start, run, write_files
from frameworks.tiny_model import BATCH, LR, Data, Model, deviation, weights
from torch import Tensor

from optgen import optim


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Module(lightning.LightningModule):
    """A module without `configure_optimizers`: LightningCLI adds it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(torch.float32)
        self.seen: list[Tensor] = []

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.seen = weights(self.model)


class Batches(lightning.LightningDataModule):
    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Data(), batch_size=BATCH)


def test_lightning_cli_trains_as_torchs_loop() -> None:
    names = run("LightningCLI", Module=Module, Data=Batches)
    model = Model(torch.float32)
    optimizer = optim.Lion(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(2):
        for batch in Batches().train_dataloader():
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
        schedule.step()

    assert type(names["cli"].trainer.optimizers[0]) is optim.Lion
    assert deviation(weights(names["cli"].model.model), weights(model)) < 1e-6
    assert distance_from_start(weights(model)) > 1e-3


def test_lightning_cli_refuses_an_argument_that_the_class_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from lightning.pytorch.cli import LightningCLI

    write_files("LightningCLI")
    config = Path("train.yaml")
    text = config.read_text(encoding="utf-8").replace("weight_decay: 0.1", "weight_decy: 0.1")
    config.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit):
        LightningCLI(Module, Batches, args=["fit", "--config", "train.yaml"])
    assert "weight_decy" in capsys.readouterr().err


class Averaged(Module):
    def configure_optimizers(self) -> Any:
        return optim.ScheduleFreeAdamW(self.parameters(), lr=LR)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Data(), batch_size=len(Data()))


def test_lightning_validates_and_saves_averaged_weights() -> None:
    module = Averaged()
    trainer = run("Averaged weights", 1, module=module)["trainer"]
    (optimizer,) = trainer.optimizers
    after_fit = weights(module.model)
    optimizer.train()
    in_training = weights(module.model)
    (path,) = Path().rglob("*.ckpt")
    saved = torch.load(path, weights_only=False)["state_dict"]

    assert deviation(after_fit, in_training) > 1e-4
    assert deviation(module.seen, after_fit) == 0
    assert deviation(saved.values(), after_fit) == 0

    reference = Averaged()
    plain = lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False)
    plain.fit(reference, torch.utils.data.DataLoader(Data(), batch_size=BATCH))
    assert deviation(in_training, weights(reference.model)) < 1e-5
