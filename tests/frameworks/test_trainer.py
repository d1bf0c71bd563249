"""Test Hugging Face Trainer: a class and its arguments, or an optimizer and a scheduler."""

from pathlib import Path
from typing import Any

import pytest
import torch
from frameworks.tiny_model import BATCH, LR, Data, Model, deviation, weights
from torch.optim import lr_scheduler as torch_schedulers
from transformers import Trainer, TrainingArguments

from optgen import optim
from optgen.optim import lr_scheduler

STEPS = 10


def arguments(folder: Path, **extra_arguments: Any) -> TrainingArguments:
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
        **extra_arguments,
    )


def losses_and_weights(trainer: Trainer, **options: Any) -> tuple[list[float], list[torch.Tensor]]:
    """Train; return the losses of all steps, and the final weights."""
    trainer.train(**options)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, weights(trainer.model)


def trainer_from_class(
    folder: Path, cls: Any, options: dict[str, Any], **extra_arguments: Any
) -> Trainer:
    return Trainer(
        model=Model(torch.float32 if "bf16" in extra_arguments else torch.float64),
        args=arguments(folder, **extra_arguments),
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
def test_training_with_a_class_and_arguments_equals_torchs(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Trainer makes two groups, with decay and without, and uses its own schedule."""
    trainer = trainer_from_class(tmp_path, getattr(optim, name), options)
    losses, params = losses_and_weights(trainer)
    expected_losses, expected_params = losses_and_weights(
        trainer_from_class(tmp_path, getattr(torch.optim, name), options)
    )

    assert isinstance(trainer.optimizer.optimizer, getattr(optim, name))
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert deviation(params, expected_params) < 1e-6
    assert deviation(params, weights(Model())) > 1e-3


def trainer_from_objects(folder: Path, with_optgen: bool) -> Trainer:
    model = Model()
    library, schedules = (optim, lr_scheduler) if with_optgen else (torch.optim, torch_schedulers)
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


def test_training_with_an_optimizer_and_a_scheduler_equals_torchs(tmp_path: Path) -> None:
    trainer = trainer_from_objects(tmp_path, with_optgen=True)
    losses, params = losses_and_weights(trainer)
    reference = trainer_from_objects(tmp_path, with_optgen=False)
    expected_losses, expected_params = losses_and_weights(reference)
    rates, expected_rates = (
        [entry["learning_rate"] for entry in each.state.log_history if "learning_rate" in entry]
        for each in (trainer, reference)
    )

    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert rates == pytest.approx(expected_rates, rel=1e-6)
    assert len(set(rates)) > 5
    assert deviation(params, expected_params) < 1e-6


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "ASGD"])
def test_resumed_training_equals_uninterrupted_training(name: str, tmp_path: Path) -> None:
    cls = getattr(optim, name)
    expected_losses, expected_params = losses_and_weights(
        trainer_from_class(tmp_path / "uninterrupted", cls, {})
    )

    first = trainer_from_class(tmp_path, cls, {}, save_steps=4)
    first.args.save_strategy = "steps"
    first.train()
    checkpoint = tmp_path / "checkpoint-4"
    losses, params = losses_and_weights(
        trainer_from_class(tmp_path, cls, {}), resume_from_checkpoint=str(checkpoint)
    )

    assert losses[-3:] == pytest.approx(expected_losses[-3:], rel=1e-6)
    assert deviation(params, expected_params) < 1e-6


def test_training_with_accumulated_clipped_bfloat16_gradients_equals_torchs(tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "bf16": True}
    losses, params = losses_and_weights(trainer_from_class(tmp_path, optim.AdamW, {}, **options))
    expected_losses, expected_params = losses_and_weights(
        trainer_from_class(tmp_path, torch.optim.AdamW, {}, **options)
    )

    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert deviation(params, expected_params) < 1e-6
