"""Hugging Face's Trainer: optimizers named in its configuration files, and averaged weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from optgen.frameworks.arguments import read_arguments
from optgen.optim import create_optimizer


@dataclass
class OptgenArguments:
    """The keys of a configuration file that name an optimizer, for `HfArgumentParser`.

    Attributes:
        optgen: a name of `optgen.optim.list_optimizers()`, or the path of a spec.
        optgen_args: further arguments of `optgen.optim.create_optimizer`: a mapping, or text such
            as `betas=(0.9, 0.95)`.
    """

    optgen: str = field(metadata={"help": "the name of an optimizer of optgen"})
    optgen_args: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "its further arguments, as in betas=(0.9,0.95),eps=1e-6"}
    )

    def cls_and_kwargs(self, args: TrainingArguments) -> tuple[type[Any], dict[str, Any]]:
        """Return what `Trainer(optimizer_cls_and_kwargs=…)` takes.

        The arguments `learning_rate` and `weight_decay` of Trainer are the optimizer's. So are
        `adam_beta1`, `adam_beta2` and `adam_epsilon`, if they differ from Trainer's defaults.

        Args:
            args: Trainer's arguments.

        Raises:
            ValueError: `optgen_args` cannot be read, or names the optimizer or the model.
        """
        arguments = {"lr": args.learning_rate, **_adam_arguments(args)}
        if args.weight_decay:
            arguments["weight_decay"] = args.weight_decay
        arguments |= read_arguments(self.optgen_args)
        if isinstance(others := arguments.get("others"), list):  # YAML has no tuples
            arguments["others"] = tuple(others)
        return _FromModel, {"name": self.optgen, **arguments}


class _FromModel:
    """A factory in Trainer's sense: Trainer makes it, and calls it with the model.

    axolotl also gives it Trainer's arguments, which `cls_and_kwargs` has read already.
    """

    def __call__(
        self, model: nn.Module, _args: TrainingArguments | None = None, /, **arguments: Any
    ) -> Optimizer:
        optimizer: Optimizer = create_optimizer(model, **arguments)
        return optimizer


def _adam_arguments(args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments of Trainer that are named after Adam and were changed."""
    defaults = {each.name: each.default for each in fields(args)}
    changed = {
        name
        for name in ("adam_beta1", "adam_beta2", "adam_epsilon")
        if defaults[name] is not MISSING and getattr(args, name) != defaults[name]
    }
    arguments: dict[str, Any] = {}
    if changed & {"adam_beta1", "adam_beta2"}:
        arguments["betas"] = (args.adam_beta1, args.adam_beta2)
    if "adam_epsilon" in changed:
        arguments["eps"] = args.adam_epsilon
    return arguments


class ModeCallback(TrainerCallback):
    """Keep averaged weights in the model that Trainer saves, and in the one it leaves behind.

    It is for optimizers with `train()` and `eval()`, such as Schedule-Free and compositions with
    `ema`. Trainer itself calls `eval()` before it evaluates, and `train()` before each backward
    pass. This callback calls `eval()` before Trainer saves, and at the end of each epoch.
    """

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the averaged weights in place, if Trainer is about to save."""
        if control.should_save:
            _eval(kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the averaged weights in place: the training may be over."""
        _eval(kwargs)


def _eval(kwargs: Mapping[str, Any]) -> None:
    """Call `eval()` of the optimizer that Trainer gives a callback; Accelerate wraps it."""
    kwargs["optimizer"].eval()
