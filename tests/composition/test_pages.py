"""Test what the pages of the modifiers say: names, defaults, stages and memory streams."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import optgen.modifiers
from optgen import optim
from optgen.cli.bench import traffic_of
from optgen.compositions import compose, list_modifiers, modifier
from optgen.spec.composition.check_parts import modifier_part
from optgen.spec.composition.find_parts import STAGES, Part, declared_key
from optgen.spec.declare import hypers_of
from optgen.spec.read_spec import read_spec

FOLDER = Path(__file__).parents[2] / "docs" / "modifiers"
INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")
ROW = r"^\| \[`(\w+)`\]\((\w+)\.md\) \| [^|]+ \| `(\w+)` \| ([^|]*) \| ([\w, ]+) \| (\d+) \|$"
ROWS = {found[0]: found[1:] for found in re.findall(ROW, INDEX, re.MULTILINE)}
PLAIN_READS, PLAIN_WRITES = 4, 3
"""Tensors of the parameter's size that a step of plain AdamW reads and writes."""


def part_of(name: str) -> Part:
    return modifier_part(modifier(name).spec)


def reads_and_writes(cls: Any) -> tuple[int, int]:
    """Return how many tensors of the parameter's size a step reads and writes."""
    traffic = traffic_of(read_spec(cls.spec)[0])
    assert traffic is not None
    trips = list(traffic[0].accesses_by_sweep({"amsgrad": False}))
    accesses = [access for trip in trips for access in trip if access.shape == "like"]
    return len(accesses), sum(access.stored for access in accesses)


def test_the_index_has_every_modifier_in_the_order_of_the_stages() -> None:
    assert sorted(ROWS) == list_modifiers()
    stages = [list(STAGES).index(row[1]) for row in ROWS.values()]
    assert stages == sorted(stages)


@pytest.mark.parametrize("name", list_modifiers())
def test_a_row_of_the_index_agrees_with_the_modifier(name: str) -> None:
    page, stage, keys, reads, writes = ROWS[name]
    part = part_of(name)
    assert (page, stage) == (name, part.stage)
    assert re.findall(r"`(\w+)`", keys) == [declared_key(state) for _, state in part.states]
    reads_in_words = {"all": PLAIN_READS, "all, twice": 2 * PLAIN_READS}
    added = reads_in_words[reads] if reads in reads_in_words else int(reads)
    expected = (PLAIN_READS + added, PLAIN_WRITES + int(writes))
    assert reads_and_writes(compose(optim.AdamW, modifier(name))) == expected


@pytest.mark.parametrize("name", list_modifiers())
def test_a_page_agrees_with_the_modifier(name: str) -> None:
    """The page names hyperparameters with their defaults, states and the stage."""
    text = " ".join((FOLDER / f"{name}.md").read_text(encoding="utf-8").split())
    assert text.startswith(f"# {name} ")
    assert f"* **Stage**: `{part_of(name).stage}`" in text
    for _, state in part_of(name).states:
        assert f"`{declared_key(state)}`" in text.partition("**States**")[2]
    for argument, declared in hypers_of(modifier(name).spec):
        (call,) = (n for n in ast.walk(ast.parse(declared)) if isinstance(n, ast.Call))
        (default,) = re.findall(rf"`{argument}` \(([\d.e-]+)\)", text)
        assert float(default) == ast.literal_eval(call.args[0])


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("name", list_modifiers())
def test_the_example_of_a_page_runs(name: str) -> None:
    """The page's line creates an optimizer, which takes a step."""
    (line,) = re.findall(
        r"^```python\noptimizer = (.*?)\n```$",
        (FOLDER / f"{name}.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    model = torch.nn.Linear(2, 2)
    namespace: dict[str, Any] = {
        "optgen": SimpleNamespace(compose=compose),
        "modifiers": optgen.modifiers,
        "model": model,
    }
    namespace |= {cls: getattr(optim, cls) for cls in ("Adam", "AdamW", "RMSprop", "SGD")}
    optimizer = eval(line, namespace)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
