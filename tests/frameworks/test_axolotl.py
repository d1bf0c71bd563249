"""Test axolotl: its plugins, and its part of the trainer that makes optimizers.

axolotl as a whole asks for about sixty packages in versions of its own. Its wheel is installed
without them, so the trainer here is Hugging Face's with axolotl's mixin. The mixin's file is loaded
by itself, because its package imports the whole.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from axolotl.integrations.base import PluginManager
from axolotl.utils.dict import DictDefault
from frameworks.configuration_page import distance_from_start, write_files
from frameworks.tiny_model import Data, Model, deviation, weights
from transformers import Trainer, TrainingArguments

from optgen import optim
from optgen.frameworks.axolotl import OptgenKeys


def load_mixin() -> type:
    """Return the part of axolotl's trainers that makes optimizers."""
    spec = importlib.util.find_spec("axolotl")
    assert spec is not None
    (folder,) = map(Path, spec.submodule_search_locations or [])
    path = folder / "core" / "trainers" / "mixins" / "optimizer.py"
    file_spec = importlib.util.spec_from_file_location("axolotl_optimizer_mixin", path)
    assert file_spec is not None
    assert file_spec.loader is not None
    module = importlib.util.module_from_spec(file_spec)
    file_spec.loader.exec_module(module)
    mixin: type = module.OptimizerMixin
    return mixin


@dataclass
class Arguments(TrainingArguments):
    """Trainer's arguments with those that axolotl's mixin reads."""

    loraplus_lr_ratio: float | None = None
    embedding_lr_scale: float | None = None
    embedding_lr: float | None = None
    lr_groups: list[dict[str, Any]] | None = None


class AxolotlTrainer(load_mixin(), Trainer):  # type: ignore[misc]
    pass


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DictDefault:
    """The file of the page, read as axolotl reads it, with its plugins registered."""
    monkeypatch.chdir(tmp_path)
    write_files("axolotl")
    monkeypatch.setattr(PluginManager, "_instance", None)
    config = DictDefault(yaml.safe_load(Path("train.yaml").read_text()))
    for plugin in config.plugins:
        PluginManager.get_instance().register(plugin)
    return config


def test_axolotls_trainer_makes_the_optimizer_of_a_file(config: DictDefault) -> None:
    manager, model = PluginManager.get_instance(), Model(torch.float32)
    settings = {"learning_rate": config.learning_rate, "weight_decay": config.weight_decay}
    args = Arguments("out", max_steps=8, use_cpu=True, report_to=[], **settings)
    trainer = AxolotlTrainer(model=model, args=args, train_dataset=Data())

    manager.post_trainer_create(config, trainer)
    trainer.train()

    expected = Model(torch.float32)
    arguments = {"betas": (0.9, 0.95), "layer_decay": 0.9}
    made = optim.create_optimizer(expected, "lion", lr=1e-3, weight_decay=0.1, **arguments)
    args = TrainingArguments("out", max_steps=8, use_cpu=True, report_to=[])
    Trainer(model=expected, args=args, train_dataset=Data(), optimizers=(made, None)).train()
    assert type(trainer.optimizer.optimizer) is optim.Lion
    assert distance_from_start(weights(model)) > 1e-3
    assert deviation(weights(model), weights(expected)) == 0


def test_axolotl_knows_the_keys_of_the_plugin(config: DictDefault) -> None:
    (path,) = PluginManager.get_instance().get_input_args()
    module, _, name = path.rpartition(".")
    keys = getattr(__import__(module, fromlist=[name]), name)
    assert keys is OptgenKeys
    assert keys(**config).optgen == "lion"
    with pytest.raises(ValueError, match="optgen"):
        keys()


def test_wrong_arguments_in_a_file_are_refused_before_training(config: DictDefault) -> None:
    config.optgen_args = "name=adamw"
    args = Arguments("out", use_cpu=True, report_to=[])
    trainer = AxolotlTrainer(model=Model(torch.float32), args=args, train_dataset=Data())
    with pytest.raises(ValueError, match="which is given elsewhere: take it out"):
        PluginManager.get_instance().post_trainer_create(config, trainer)
