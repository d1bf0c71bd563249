"""Test sparse gradients through fused Triton: the touched rows, against torch's own classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside

import optgen
import optgen.optim

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SparseAdam", {}),
    ("SparseAdam", {"maximize": True}),
    ("Adagrad", {}),
    ("SGD", {"lr": 0.1}),
)
CHECKED = torch.sparse.check_sparse_tensor_invariants


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


def gradients() -> Iterator[torch.Tensor]:
    """Yield gradients that name rows more than once, and one without rows."""
    generator = torch.Generator().manual_seed(1)
    for count in (5, 0, 7, 3):
        indices = torch.randint(0, 9, (1, count), generator=generator)
        values = torch.randn(count, 6, generator=generator, dtype=torch.float64)
        yield torch.sparse_coo_tensor(indices, values, (9, 6))


@inside_interpreter
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_touched_rows_equal_torchs(name: str, options: dict[str, Any]) -> None:
    start = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    finals = []
    with CHECKED(enable=True):
        for module in (torch.optim, optgen.optim):
            tables = [torch.nn.Parameter(start.clone())]
            # also a dense parameter, if the class takes one
            tables += [torch.nn.Parameter(start[0].clone())] * (name != "SparseAdam")
            optimizer = getattr(module, name)(tables, **options)
            for grad in gradients():
                for table in tables:
                    table.grad = grad if table is tables[0] else torch.ones_like(table)
                if module is torch.optim:
                    optimizer.step()
                    continue
                with optgen.use_lowering("fused_triton"):
                    optimizer.step()
            finals.append((tables, optimizer.state_dict()["state"]))
    (theirs, expected), (ours, state) = finals
    for table, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(table, reference, rtol=1e-13, atol=1e-14)
    for key, values in state.items():
        for name, value in values.items():
            assert type(value) is type(expected[key][name])
            torch.testing.assert_close(
                torch.as_tensor(value), torch.as_tensor(expected[key][name]), rtol=1e-13, atol=0
            )
