"""Test DeepSpeed's ZeRO stages on two processes; elementwise rules may step flat partitions."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import pair
from frameworks.tiny_model import BATCH, LR, Data, Model, deviation, weights
from torch import Tensor

from optgen import optim

STEPS = 6
LIMIT = 120.0  # seconds, because importing deepspeed is slow

CASES = [("AdamW", {}), ("AdamW", {"fused": True}), ("SGD", {"momentum": 0.9}), ("NAdam", {})]


def model_and_optimizer(
    name: str, options: dict[str, Any], library: Any = optim
) -> tuple[Model, Any]:
    model = Model(torch.float32)
    matrices = [param for param in model.parameters() if param.ndim > 1]
    vectors = [param for param in model.parameters() if param.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors}]
    return model, getattr(library, name)(groups, lr=LR, **options)


def engine(
    stage: int, name: str, options: dict[str, Any], library: Any = optim, **config: Any
) -> Any:
    """Return DeepSpeed's engine of a model and an optimizer, without DeepSpeed's C++."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    model, optimizer = model_and_optimizer(name, options, library)
    config = {
        "train_micro_batch_size_per_gpu": BATCH // 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.5,
        **config,
    }
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(model: Any, rank: int, first: int, last: int) -> None:
    data, half = Data(), BATCH // 2
    for step in range(first, last):
        start = step * BATCH % len(data) + rank * half
        rows = slice(start, start + half)
        model.backward(model(data.inputs[rows], data.labels[rows])["loss"])
        model.step()


def gathered_weights(model: Any) -> list[Tensor]:
    """Return the whole parameters; in stage 3 each process holds a part of them."""
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(model.module.parameters())):
        return weights(model.module)


def weights_after_training(
    rank: int,
    stage: int,
    name: str,
    options: dict[str, Any],
    with_optgen: bool = True,
    config: dict[str, Any] | None = None,
) -> list[Tensor]:
    model = engine(stage, name, options, optim if with_optgen else torch.optim, **(config or {}))
    train(model, rank, 0, STEPS)
    return gathered_weights(model)


def weights_after_resume(rank: int, stage: int, name: str, folder: str) -> list[Tensor]:
    first = engine(stage, name, {})
    train(first, rank, 0, 2)
    first.save_checkpoint(folder, tag="two")
    second = engine(stage, name, {})
    second.load_checkpoint(folder, tag="two")
    train(second, rank, 2, STEPS)
    return gathered_weights(second)


def training_error(rank: int, stage: int, name: str) -> str:
    try:
        weights_after_training(rank, stage, name, {})
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def weights_of_torch_on_one_process(name: str, options: dict[str, Any]) -> list[Tensor]:
    """Train on one process with torch's optimizer."""
    model, optimizer = model_and_optimizer(name, options, torch.optim)
    data = Data()
    for step in range(STEPS):
        rows = slice(step * BATCH % len(data), step * BATCH % len(data) + BATCH)
        optimizer.zero_grad()
        model(data.inputs[rows], data.labels[rows])["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return weights(model)


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    """Compare absolutely: means of half batches round differently; some weights are near 0."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_training_equals_torchs(name: str, options: dict[str, Any], stage: int) -> None:
    found, found_on_other_rank = pair.run(weights_after_training, stage, name, options, limit=LIMIT)
    expected, _ = pair.run(weights_after_training, stage, name, options, False, limit=LIMIT)

    assert_near(found, expected)
    assert_near(found, weights_of_torch_on_one_process(name, options))
    assert deviation(found, found_on_other_rank) == 0
    assert deviation(found, weights(Model(torch.float32))) > 1e-3


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_bfloat16_model_trains_as_with_torch(name: str, stage: int) -> None:
    """The optimizer steps float32 partitions; the model's weights are copies of them."""
    config = {"bf16": {"enabled": True}}
    found, _ = pair.run(weights_after_training, stage, name, {}, True, config, limit=LIMIT)
    expected, _ = pair.run(weights_after_training, stage, name, {}, False, config, limit=LIMIT)

    assert {param.dtype for param in found} == {torch.bfloat16}
    assert deviation(found, expected) <= 2**-8  # one rounding of a weight
    assert deviation(found, weights(Model(torch.bfloat16))) > 1e-3


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", ["AdamW", "NAdam"])
def test_resumed_training_equals_uninterrupted_training(
    name: str, stage: int, tmp_path: Path
) -> None:
    expected = pair.run(weights_after_training, stage, name, {}, limit=LIMIT)
    found = pair.run(weights_after_resume, stage, name, str(tmp_path), limit=LIMIT)

    assert_near(found[0], weights_of_torch_on_one_process(name, {}))
    assert deviation(found[0], expected[0]) == 0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rule_that_looks_at_whole_parameters_refuses_partitions(stage: int) -> None:
    for error in pair.run(training_error, stage, "Adafactor", limit=LIMIT):
        assert error.startswith("Adafactor cannot step a flat partition: a group's parameters")


def test_adafactor_trains_without_partitions() -> None:
    for found in pair.run(weights_after_training, 0, "Adafactor", {}, limit=LIMIT):
        assert_near(found, weights_of_torch_on_one_process("Adafactor", {}))


def test_deepspeed_demands_an_option_for_untested_optimizers() -> None:
    with pytest.raises(pair.RankError, match="zero_allow_untested_optimizer"):
        pair.run(initialize_without_the_option, limit=LIMIT)


def initialize_without_the_option(rank: int) -> None:
    engine(1, "AdamW", {}, zero_allow_untested_optimizer=False)
