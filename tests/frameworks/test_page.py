"""Test the examples of docs/frameworks.md: they run unchanged."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import pair
from frameworks.tiny_model import BATCH, Data, Model, deviation, weights
from torch import Tensor

LIMIT = 240.0  # seconds, because importing deepspeed is slow
PAGE = Path(__file__).parent.parent.parent / "docs" / "frameworks.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
BLOCKS = {text.split("\n")[0]: re.findall(r"```python\n(.*?)```", text, re.S) for text in SECTIONS}


def run(title: str, optimizer_class: str = "AdamW") -> dict[str, Any]:
    """Run the example of a section with an optimizer class; return the names that it defines."""
    block = BLOCKS[title][0].replace("AdamW", optimizer_class)
    dataset, model = Data(), Model(torch.float32)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH)
    names: dict[str, Any] = {"model": model, "dataset": dataset, "loader": loader}
    exec(compile(block, str(PAGE), "exec"), names)
    return names | {"trained": model}


def distance_from_start(params: list[Tensor]) -> float:
    return deviation(params, weights(Model(torch.float32)))


@pytest.mark.parametrize("title", ["Hugging Face Trainer", "Accelerate", "Lightning"])
def test_an_example_trains(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert distance_from_start(weights(run(title)["trained"])) > 1e-3


def test_the_torchtitan_example_builds_optimizers() -> None:
    from torchtitan.config import Optimizer

    names = run("torchtitan")
    container = names["build_optimizers"]([names["model"]], Optimizer(), None)
    assert type(container.optimizers[0]).__module__.startswith("optgen.")


def deepspeed_example(rank: int, folder: str, optimizer_class: str = "AdamW") -> list[Tensor] | str:
    """Return the parameters after training, or the optimizer's error."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.chdir(folder)
    try:
        return weights(run("DeepSpeed", optimizer_class)["trained"])
    except RuntimeError as error:
        return str(error)


def test_the_deepspeed_example_trains_and_saves(tmp_path: Path) -> None:
    for params in pair.run(deepspeed_example, str(tmp_path), limit=LIMIT):
        assert distance_from_start(params) > 1e-3
    assert (tmp_path / "checkpoint" / "latest").is_file()


def test_the_page_quotes_the_error_for_a_flat_partition(tmp_path: Path) -> None:
    (printed,) = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.S)
    found = pair.run(deepspeed_example, str(tmp_path), "Adafactor", limit=LIMIT)
    assert found == [printed, printed]


def test_the_example_of_an_update_in_the_backward_pass_trains() -> None:
    names = run("Your own loop, with the update in the backward pass")
    data = Data()
    names["model"](data.inputs, data.labels)["loss"].backward()

    assert distance_from_start(weights(names["model"])) > 1e-3
    assert all(param.grad is None for param in names["model"].parameters())


def test_every_example_is_run() -> None:
    assert [title for title, blocks in BLOCKS.items() if len(blocks) != 1] == []
    assert len(BLOCKS) == 6
