"""A small job for torchtitan's own trainer, offloaded by its file.

torchtitan asks for the device when it is imported: import this module once the device is there.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import ConfigManager
from torchtitan.models.qwen3 import Qwen3ModelArgs
from torchtitan.protocols import train_spec
from torchtitan.train import Trainer

from optgen import compose, modifiers
from optgen.frameworks import torchtitan

MASTER = compose("adamw", modifiers.state_dtype("float32"), modifiers.master)
JOB = """
[job]
dump_folder = "out"
custom_config_module = "optgen.frameworks.torchtitan"
[model]
name = "qwen3"
flavor = "tiny"
[optimizer]
name = "adamw"
lr = 1e-3
offload = true
arguments = "keep_on_device=0"
[lr_scheduler]
warmup_steps = 2
[training]
local_batch_size = 2
seq_len = 8
steps = 3
dtype = "bfloat16"
[activation_checkpoint]
mode = "none"
"""


class Tokens:
    """A dataloader, as torchtitan calls it."""

    def __init__(self, **_: Any) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            tokens = torch.randint(0, 32, (2, 9), generator=self.generator)
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {}


def tiny_spec() -> Any:
    """Return the spec that optgen registers for torchtitan's Qwen 3, small and with data."""
    torchtitan.register("qwen3")
    spec = train_spec._extra_train_specs.pop("qwen3")
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "head_dim": 16}
    tiny = Qwen3ModelArgs(**sizes, hidden_dim=48, vocab_size=32, max_seq_len=8)
    parts = {"build_dataloader_fn": Tokens, "build_tokenizer_fn": None, "state_dict_adapter": None}
    return replace(spec, model_args={"tiny": tiny}, **parts)


def weights_of_a_loop(trainer: Trainer) -> list[Tensor]:
    """Train a copy of the trainer's model by hand: step on the CPU, and copy the weights back."""
    config, spec = trainer.job_config, trainer.train_spec
    model = copied(trainer).to("sim")
    host = copied(trainer)
    section = config.optimizer
    options = {"lr": section.lr, "betas": (section.beta1, section.beta2), "eps": section.eps}
    options |= {"weight_decay": section.weight_decay}
    optimizers = OptimizersContainer([host], MASTER, options)
    schedulers = spec.build_lr_schedulers_fn(optimizers, config.lr_scheduler, config.training.steps)
    params, masters = list(model.parameters()), list(host.parameters())
    for (inputs, labels), _ in zip(Tokens(), range(config.training.steps), strict=False):
        model.zero_grad()
        with trainer.maybe_enable_amp:
            predicted = model(inputs["input"].to("sim"))
            loss = trainer.loss_fn(predicted, labels.to("sim")) / float(labels.numel())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, config.training.max_norm, foreach=True)
        for param, master in zip(params, masters, strict=True):
            master.grad = param.grad.cpu()
        optimizers.step()
        schedulers.step()
        with torch.no_grad():
            for param, master in zip(params, masters, strict=True):
                param.copy_(master)
    return [param.detach().cpu() for param in params]


def new_trainer(path: str) -> Trainer:
    """Return torchtitan's trainer for a job's file; `tiny_spec` is its model."""
    config = ConfigManager().parse_args(["--job.config_file", path])
    train_spec._extra_train_specs["qwen3"] = tiny_spec()
    return Trainer(config)


def copied(trainer: Trainer) -> nn.Module:
    """Return a copy of the trainer's model, on the CPU."""
    (model,) = trainer.model_parts
    copy = type(model)(trainer.model_args).to(torch.bfloat16)
    copy.load_state_dict({key: value.cpu() for key, value in model.state_dict().items()})
    return copy
