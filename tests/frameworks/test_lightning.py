"""Test Lightning: automatic and manual optimization, 16 bits with clipping, checkpoints."""

from pathlib import Path
from types import ModuleType
from typing import Any

import lightning
import pytest
import torch
from frameworks.tiny_model import BATCH, LR, Data, Model, deviation, weights
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch.optim import lr_scheduler as torch_schedulers

from optgen import optim
from optgen.optim import lr_scheduler

STEPS = 10


class Automatic(lightning.LightningModule):
    """A module whose `step` Lightning calls, with a closure that runs forward and backward."""

    def __init__(self, name: str, library: ModuleType, schedules: Any, **options: Any) -> None:
        super().__init__()
        self.model = Model(options.pop("dtype", torch.float64))
        self.new_optimizer = lambda: getattr(library, name)(self.parameters(), lr=LR, **options)
        self.schedules = schedules
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = self.model(**batch)["loss"]
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = self.new_optimizer()
        scheduler = self.schedules.OneCycleLR(
            optimizer,
            max_lr=LR,
            total_steps=STEPS + 1,
            cycle_momentum=bool({"betas", "momentum"} & set(optimizer.defaults)),
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Manual(Automatic):
    """A module that makes the calls which Lightning makes in automatic optimization."""

    automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor], index: int) -> None:
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        loss = super().training_step(batch, index)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, 0.5, "norm")
        optimizer.step()
        scheduler.step()


def trainer(folder: Path, mixed_dtype: str = "", **options: Any) -> lightning.Trainer:
    precision = MIXED_PRECISION[mixed_dtype]() if mixed_dtype else {"precision": "64-true"}
    return lightning.Trainer(
        **{"max_steps": STEPS, **precision, **options},
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing="callbacks" in options,
    )


def weights_after_fit(
    module: Automatic,
    folder: Path,
    checkpoint: str | None = None,
    batch: int = BATCH,
    **options: Any,
) -> list[Tensor]:
    loader = torch.utils.data.DataLoader(Data(), batch_size=batch)
    trainer(folder, **options).fit(module, loader, ckpt_path=checkpoint)
    return weights(module)


def compare_with_torch(
    cls: type[Automatic], name: str, folder: Path, options: dict[str, Any], **fit_options: Any
) -> None:
    """Train with optgen's class and with torch's; compare the losses and the weights."""
    options = {"dtype": torch.float32 if "mixed_dtype" in fit_options else torch.float64, **options}
    module = cls(name, optim, lr_scheduler, **options)
    reference = cls(name, torch.optim, torch_schedulers, **options)
    params = weights_after_fit(module, folder, **fit_options)
    expected = weights_after_fit(reference, folder, **fit_options)

    assert isinstance(module.trainer.optimizers[0], getattr(optim, name))
    assert module.losses == pytest.approx(reference.losses, rel=1e-6)
    assert deviation(params, expected) < 1e-6
    assert deviation(params, weights(Model(params[0].dtype))) > 1e-3


CASES = [
    ("AdamW", {}),
    ("AdamW", {"fused": True}),
    ("SGD", {"momentum": 0.9}),
    ("RMSprop", {"centered": True}),
    ("Adafactor", {}),
]


@pytest.mark.parametrize("cls", [Automatic, Manual])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_training_equals_torchs(
    name: str, options: dict[str, Any], cls: type[Automatic], tmp_path: Path
) -> None:
    compare_with_torch(cls, name, tmp_path, options)


def float16_with_scaler() -> MixedPrecision:
    """Return a plugin for float16 with a gradient scaler; on a CPU Lightning prefers bfloat16."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**12))


MIXED_PRECISION = {
    "float16": lambda: {"plugins": float16_with_scaler()},
    "bfloat16": lambda: {"precision": "bf16-mixed"},
}


@pytest.mark.parametrize("dtype", MIXED_PRECISION)
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor"])
def test_mixed_precision_training_with_clipping_equals_torchs(
    name: str, dtype: str, tmp_path: Path
) -> None:
    compare_with_torch(Automatic, name, tmp_path, {}, mixed_dtype=dtype, gradient_clip_val=0.5)


def test_manual_optimization_with_bfloat16_and_clipping_equals_torchs(tmp_path: Path) -> None:
    compare_with_torch(Manual, "AdamW", tmp_path, {}, mixed_dtype="bfloat16")


def test_fused_training_with_float16_equals_torchs(tmp_path: Path) -> None:
    """The gradient scaler leaves the unscaling to a fused step."""
    compare_with_torch(Automatic, "AdamW", tmp_path, {"fused": True}, mixed_dtype="float16")


@pytest.mark.parametrize("library", [optim, torch.optim])
def test_lightning_does_not_clip_with_fused_true(library: ModuleType, tmp_path: Path) -> None:
    """Without `fused=True` optgen's step is fused, too, and Lightning clips the gradients."""
    module = Automatic("AdamW", library, torch_schedulers, dtype=torch.float32, fused=True)
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        weights_after_fit(module, tmp_path, mixed_dtype="float16", gradient_clip_val=0.5)


@pytest.mark.parametrize("cls", [Automatic, Manual])
@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "ASGD"])
def test_resumed_training_equals_uninterrupted_training(
    name: str, cls: type[Automatic], tmp_path: Path
) -> None:
    """One batch holds all data, so Lightning's order of batches after a resume does not matter."""
    callback = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    settings = {"batch": len(Data()), "callbacks": [callback]}
    expected = weights_after_fit(cls(name, optim, lr_scheduler), tmp_path, **settings)
    resumed = cls(name, optim, lr_scheduler)
    found = weights_after_fit(resumed, tmp_path, str(tmp_path / "epoch=3.ckpt"), **settings)

    assert len(resumed.losses) == STEPS - 4
    # loading makes ASGD's float32 scalars float64, as in torch
    assert deviation(found, expected) < 1e-8
