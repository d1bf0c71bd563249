"""Test Hugging Face Trainer: a class and its arguments, or an optimizer and a scheduler."""

from pathlib import Path
from typing import Any

import pytest
import torch
from frameworks.tiny import BATCH, LR, Data, Model, deviation, weights
from torch.optim import lr_scheduler as torch_schedulers
from transformers import Trainer, TrainingArguments

from optgen import optim
from optgen.optim import lr_scheduler

STEPS = 10


def arguments(folder: Path, **others: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=LR,
        weight_decay=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **others,
    )


def trained(trainer: Trainer, **options: Any) -> tuple[list[float], list[torch.Tensor]]:
    """Return losses and parameters after training."""
    trainer.train(**options)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, weights(trainer.model)


def by_class(folder: Path, cls: Any, options: dict[str, Any], **others: Any) -> Trainer:
    return Trainer(
        model=Model(torch.float32 if "bf16" in others else torch.float64),
        args=arguments(folder, **others),
        train_dataset=Data(),
        optimizer_cls_and_kwargs=(cls, {"lr": LR, **options}),
    )


CASES = [
    ("AdamW", {}),
    ("AdamW", {"fused": True}),
    ("AdamW", {"foreach": True}),
    ("SGD", {"momentum": 0.9}),
    ("RAdam", {}),
    ("Adafactor", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_class_and_its_arguments(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Trainer makes two groups, with decay and without, and uses its own schedule."""
    trainer = by_class(tmp_path, getattr(optim, name), options)
    losses, params = trained(trainer)
    expected, others = trained(by_class(tmp_path, getattr(torch.optim, name), options))

    assert isinstance(trainer.optimizer.optimizer, getattr(optim, name))
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert deviation(params, others) < 1e-6
    assert deviation(params, weights(Model())) > 1e-3


def by_objects(folder: Path, ours: bool) -> Trainer:
    model = Model()
    library, schedules = (optim, lr_scheduler) if ours else (torch.optim, torch_schedulers)
    optimizer = library.NAdam(model.parameters(), lr=LR)
    scheduler = schedules.SequentialLR(
        optimizer,
        [
            schedules.LinearLR(optimizer, start_factor=0.1, total_iters=3),
            schedules.CosineAnnealingLR(optimizer, T_max=STEPS),
        ],
        milestones=[3],
    )
    return Trainer(
        model=model,
        args=arguments(folder),
        train_dataset=Data(),
        optimizers=(optimizer, scheduler),
    )


def test_an_optimizer_and_a_scheduler(tmp_path: Path) -> None:
    trainer = by_objects(tmp_path, ours=True)
    losses, params = trained(trainer)
    reference = by_objects(tmp_path, ours=False)
    expected, others = trained(reference)
    rates, theirs = (
        [e["learning_rate"] for e in t.state.log_history if "learning_rate" in e]
        for t in (trainer, reference)
    )

    assert losses == pytest.approx(expected, rel=1e-6)
    assert rates == pytest.approx(theirs, rel=1e-6)
    assert len(set(rates)) > 5
    assert deviation(params, others) < 1e-6


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "ASGD"])
def test_resumed_training_is_uninterrupted_training(name: str, tmp_path: Path) -> None:
    cls = getattr(optim, name)
    expected, others = trained(by_class(tmp_path / "through", cls, {}))

    first = by_class(tmp_path, cls, {}, save_steps=4)
    first.args.save_strategy = "steps"
    first.train()
    checkpoint = tmp_path / "checkpoint-4"
    losses, params = trained(by_class(tmp_path, cls, {}), resume_from_checkpoint=str(checkpoint))

    assert losses[-3:] == pytest.approx(expected[-3:], rel=1e-6)
    assert deviation(params, others) < 1e-6


def test_gradients_that_are_accumulated_clipped_and_in_bfloat16(tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "bf16": True}
    losses, params = trained(by_class(tmp_path, optim.AdamW, {}, **options))
    expected, others = trained(by_class(tmp_path, torch.optim.AdamW, {}, **options))

    assert losses == pytest.approx(expected, rel=1e-6)
    assert deviation(params, others) < 1e-6
