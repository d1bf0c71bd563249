"""The examples of docs/configuration-files.md, and how to run them."""

import re
from pathlib import Path
from typing import Any

import torch
from frameworks.tiny_model import BATCH, Data, Model, deviation, weights
from torch import Tensor

PAGE = Path(__file__).parents[2] / "docs" / "configuration-files.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
FILES = {"yaml": "train.yaml", "toml": "job.toml", "json": "deepspeed.json"}


def blocks(title: str) -> list[tuple[str, str]]:
    """Return the languages and texts of the blocks of a section."""
    (section,) = [text for text in SECTIONS if text.split("\n")[0] == title]
    return re.findall(r"```(\w+)\n(.*?)```", section, re.S)


def write_files(title: str) -> None:
    """Write the files that a section shows into the current folder."""
    for language, text in blocks(title):
        if language in FILES:
            Path(FILES[language]).write_text(text, encoding="utf-8")
        elif text.startswith("# my_models.py"):
            Path("my_models.py").write_text(text, encoding="utf-8")


def run(title: str, index: int = 0, **names: Any) -> dict[str, Any]:
    """Run a block of Python in a section, beside its files; return the names that it defines."""
    write_files(title)
    code = [text for language, text in blocks(title) if language == "python"][index]
    dataset, model = Data(), Model(torch.float32)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH)
    names = {"model": model, "dataset": dataset, "loader": loader, **names}
    exec(compile(code, str(PAGE), "exec"), names)
    return names | {"trained": model}


def distance_from_start(params: list[Tensor]) -> float:
    return deviation(params, weights(Model(torch.float32)))
