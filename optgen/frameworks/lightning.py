"""Lightning: averaged weights for validation, and in checkpoints."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class ModeCallback(Callback):
    """Call `train()` and `eval()` of optimizers that have them, where Lightning needs it.

    It is for Schedule-Free and for compositions with `ema`. Weights are averaged in validation, at
    the end of each epoch, and after `fit`. So they are averaged in a checkpoint that is saved after
    a validation or an epoch; any other checkpoint is in train mode. Both kinds can be resumed.
    """

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Put the trained weights in place."""
        _switch(trainer, "train")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the averaged weights in place."""
        _switch(trainer, "eval")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the averaged weights in place, before Lightning's checkpoints are saved."""
        _switch(trainer, "eval")


def _switch(trainer: Trainer, mode: str) -> None:
    """Call `train()` or `eval()` of the optimizers that have it."""
    for optimizer in trainer.optimizers:
        if hasattr(optimizer, mode):
            getattr(optimizer, mode)()
