"""Test that the examples of docs/keyed.md run unchanged."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from keyed.models import content

PAGE = Path(__file__).parent.parent.parent / "docs" / "keyed.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


class Recommender(torch.nn.Module):
    """A model with a table of rows and a layer, whose inputs are two rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = torch.nn.ModuleDict({"users": torch.nn.Embedding(5, 3)})
        self.dense = torch.nn.Linear(6, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.dense(self.tables["users"](rows).flatten(1)).sum()


def run(block: str, model: Recommender) -> Any:
    """Run a block; return its variables."""
    variables: dict[str, Any] = {"model": model}
    exec(compile(block, str(PAGE), "exec"), variables)
    return variables


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    construction, torch_save_block, dcp_block = BLOCKS
    model = Recommender()
    variables = run(construction, model)
    optimizer = variables["optimizer"]
    for _ in range(3):
        model(torch.tensor([[0, 1], [2, 2]])).backward()
        optimizer.step()
        optimizer.zero_grad()
    saved = content(optimizer.state_dict())
    save, load = torch_save_block.split("\n\n")
    exec(compile(save, str(PAGE), "exec"), variables)

    variables = run(construction + load, Recommender())
    assert content(variables["optimizer"].state_dict()) == saved
    assert [g["lr"] for g in variables["optimizer"].param_groups] == pytest.approx(
        [1.297e-5, 1.297e-4]
    )
    exec(compile(dcp_block, str(PAGE), "exec"), variables)
    assert content(variables["optimizer"].state_dict()) == saved
