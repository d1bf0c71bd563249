"""Test that fused Triton steps the rows of sparse gradients as torch's classes do."""

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
def test_parameters_and_states_equal_torchs(name: str, options: dict[str, Any]) -> None:
    start = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    finals = []
    with torch.sparse.check_sparse_tensor_invariants(enable=True):
        for module in (torch.optim, optgen.optim):
            params = [torch.nn.Parameter(start.clone())]
            if name != "SparseAdam":  # which takes no dense gradients
                params.append(torch.nn.Parameter(start[0].clone()))
            optimizer = getattr(module, name)(params, **options)
            for grad in gradients():
                for param in params:
                    param.grad = grad if param is params[0] else torch.ones_like(param)
                if module is torch.optim:
                    optimizer.step()
                    continue
                with optgen.use_lowering("fused_triton"):
                    optimizer.step()
            finals.append((params, optimizer.state_dict()["state"]))
    (theirs, expected_states), (ours, states) = finals
    for param, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(param, reference, rtol=1e-13, atol=1e-14)
    for index, states_of_param in states.items():
        for key, value in states_of_param.items():
            expected = expected_states[index][key]
            assert type(value) is type(expected)
            torch.testing.assert_close(
                torch.as_tensor(value), torch.as_tensor(expected), rtol=1e-13, atol=0
            )
