"""Test docs/not-yet.md: optgen raises the errors that the page shows, and workarounds train."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

PAGE = (Path(__file__).parent.parent / "docs" / "not-yet.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ERRORS = re.findall(r"^\| `([^|]+)` \| (.*?) \|$", PAGE, re.MULTILINE)


def spec_of(code: str) -> str:
    """Return a spec that holds the code of a table row; the rest of the spec is valid."""
    heads, inputs, states, statement, below = [], "p, g", 'm=state("exp_avg")', "m = m + g", ""
    if code.startswith(("import ", "from ")):
        heads.append(code)
    elif code.startswith("@"):
        below = f"{code}\ndef evaluated(p, m, /):\n    p = m\n"
    elif "=state(" in code:
        states = f"{states}, {code}"
    elif re.fullmatch(r"[a-z](, [a-z])+", code):
        inputs = code
    else:
        statement = f"{code}\n    m = m + g"
    if code.startswith("s = "):
        states = f'{states}, s=state("number", shape="scalar")'
    words = [
        word for word in ("sum", "norm", "solve_triangular") if re.search(rf"\b{word}\(", code)
    ]
    heads.append(f"from optgen.spec import {', '.join(['hyper', 'optimizer', 'state', *words])}")
    return "\n".join(
        [
            *heads,
            '\n\n@optimizer(paper="https://arxiv.org/abs/0000.00000")',
            f"def Rule({inputs}, /, {states}, *, lr=hyper(1e-3)):",
            '    """A rule."""',
            f"    {statement}",
            "    p = p - lr * m",
            "",
            below,
        ]
    )


@pytest.mark.parametrize(("code", "message"), ERRORS, ids=[row[0] for row in ERRORS])
def test_an_error_is_as_the_page_says(code: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    path.write_text(spec_of(code), encoding="utf-8")

    with pytest.raises(SpecError) as caught:
        read_spec(path)

    first = str(caught.value).splitlines()[0]
    assert first.split(": ", 1)[1] == message


def test_the_table_has_rows() -> None:
    assert len(ERRORS) > 20


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_code_block_trains(block: str) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)
    names: dict[str, Any] = {
        "model": torch.nn.Sequential(*layers),
        "batches": [(torch.randn(16, 4), torch.zeros(16, 2))] * 8,
        "loss_function": torch.nn.functional.mse_loss,
    }

    def loss() -> float:
        inputs, targets = names["batches"][0]
        return names["loss_function"](names["model"](inputs), targets).item()

    before = loss()
    exec(compile(block, "docs/not-yet.md", "exec"), names)

    assert loss() < before
