"""Try a step of an optimizer with parameters of a dtype."""

from __future__ import annotations

import functools

import torch

from optgen import use_lowering
from website.entries import Entry


@functools.cache
def step_error(entry: Entry, dtype: torch.dtype) -> str:
    """Take a step by foreach; return "" if it works, else the first line of its error."""
    param = torch.nn.Parameter(torch.eye(4, dtype=dtype))
    param.grad = torch.eye(4, dtype=dtype) / 8
    if entry.algorithm.gradient == "sparse_only":
        param.grad = param.grad.to_sparse(1)
    values = {"max_lr": 1e-3} if entry.name == "adamc" else {}
    try:
        optimizer = entry.cls([param], **values)
        with use_lowering("foreach"):
            optimizer.step()
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error).splitlines()[0]
    return ""
