"""Test trl: its parser names an optimizer of optgen, and its trainers train with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from frameworks.configuration_page import run
from frameworks.tiny_model import deviation, weights

from optgen import optim

WORDS = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "e", "f"]
SENTENCES = ["a b c d", "b c d e", "c d e f", "d e f a"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **special))


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def sentences() -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"text": SENTENCES * 8})


def test_sft_trains_as_with_an_optimizer_made_in_code() -> None:
    from trl import SFTConfig, SFTTrainer

    model, start = tiny_llama(), weights(tiny_llama())
    names = run("trl", model=model, dataset=sentences(), tokenizer=tokenizer())
    expected = tiny_llama()
    arguments = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)}
    made = optim.create_optimizer(expected, "lion", **arguments)
    SFTTrainer(
        model=expected,
        args=SFTConfig(output_dir="out", max_steps=8, use_cpu=True),
        train_dataset=sentences(),
        processing_class=tokenizer(),
        optimizers=(made, None),
    ).train()

    optimizer = names["trainer"].optimizer.optimizer
    assert type(optimizer) is optim.Lion
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.1}
    assert deviation(weights(model), start) > 1e-3
    assert deviation(weights(model), weights(expected)) == 0


def test_dpo_trains_with_an_optimizer_made_in_code() -> None:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    pairs = {"prompt": ["a b", "b c"], "chosen": ["c d", "d e"], "rejected": ["f f", "a a"]}
    model, start = tiny_llama(), weights(tiny_llama())
    muon = optim.create_optimizer(model, "muon", lr=1e-2, others=("adamw", {"lr": 1e-3}))
    trainer = DPOTrainer(
        model=model,
        ref_model=tiny_llama(),
        args=DPOConfig(output_dir="out", max_steps=4, use_cpu=True, logging_steps=1),
        train_dataset=Dataset.from_dict({key: texts * 8 for key, texts in pairs.items()}),
        processing_class=tokenizer(),
        optimizers=(muon, None),
    )
    trainer.train()

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert deviation(weights(model), start) > 1e-3
    assert losses[-1] < losses[0]
