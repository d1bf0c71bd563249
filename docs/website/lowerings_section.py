"""Show which lowerings a rule has, on which devices they run, and for which dtypes."""

from __future__ import annotations

import torch

import optgen
from optgen.ir.execution import widens
from optgen.lowerings import LOWERINGS
from optgen.passes.plan_rule import why_uncut
from website.docstrings import table_cell
from website.dtype_trials import step_error
from website.entries import Entry
from website.tables import table

_TITLES = {
    "forloop": "for-loop (Python)",
    "foreach": "foreach (`torch._foreach_*`)",
    "fused_cpu": "fused C++",
    "fused_triton": "fused Triton",
}
_NOT_RUN = "not run"


def lowerings(entry: Entry) -> str:
    """Return the lowerings of a rule as a table, and the default lowering on a CPU."""
    header = ("lowering", "CPU", "CUDA, ROCm")
    parts = [table(header, [(title, *_cells(entry, name)) for name, title in _TITLES.items()])]
    parts.append(
        "**Nothing of optgen has run on a GPU.** Tests run Triton kernels in Triton's interpreter "
        "and compile them ahead of time ([what runs where](../what-runs-where.md))."
    )
    parts.append("On a CPU, `optgen.explain(optimizer)` says:")
    parts.append(f"```text\n{explain_text(entry)}\n```")
    return "\n\n".join(parts)


def _cells(entry: Entry, name: str) -> tuple[str, str]:
    algorithm = entry.algorithm
    (lowering,) = (each for each in LOWERINGS if each.name == name)
    if name == "fused_cpu" and why_uncut(algorithm):
        return ("yes: matrices by torch, elementwise parts in C++", "no")
    if name == "fused_triton" and why_uncut(algorithm):
        return ("in Triton's interpreter: matrices by torch", "elementwise parts emulated, not run")
    if why := lowering.refusal(algorithm):
        return (f"no: {why}", "no")
    return {
        "forloop": ("yes", _NOT_RUN),
        "foreach": ("yes", _NOT_RUN),
        "fused_cpu": ("yes; the default", "no"),
        "fused_triton": ("in Triton's interpreter", "compiled ahead of time, not run"),
    }[name]


def explain_text(entry: Entry) -> str:
    """Return the text of `optgen.explain` for an optimizer of a matrix."""
    param = torch.zeros(64, 32)
    values = {"max_lr": 1e-3} if entry.name == "adamc" else {}
    return optgen.explain(entry.cls([param], **values))


def dtypes(entry: Entry) -> str:
    """Return a table of the parameter dtypes that a rule takes."""
    algorithm = entry.algorithm
    rounding = (
        "every lowering computes in float32 or wider"
        if widens(algorithm)
        else "for-loop and foreach round after every operation, fused kernels compute in float32"
    )
    rows = [("float64, float32", "yes")]
    for name, note in (("bfloat16", rounding), ("complex64", "as pairs of reals")):
        why = step_error(entry, getattr(torch, name))
        rows.append((name, f"no: {table_cell(why)}" if why else f"yes: {note}"))
    rows += [("float8, integers", "no"), ("sparse gradients", _sparse(entry))]
    return table(("parameters in", "a step"), rows)


def _sparse(entry: Entry) -> str:
    return {
        "dense": "no: an error",
        "rows": "yes, by the rows that they touch",
        "sparse_only": "yes, and no others",
    }[entry.algorithm.gradient]
