"""Write short spec files for tests; each part of a file has a default."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

UPDATE = "p = p - lr * g"
LR = "lr=hyper(0.1, ge=0)"
DECORATOR = '@optimizer(paper="https://example.org")'


def spec(
    *body: str,
    inputs: str = "p, g, t",
    states: str = "",
    hypers: str = LR,
    before: str = "",
    decorator: str = DECORATOR,
    doc: str = '"""Made up."""',
) -> str:
    """Return a file with one spec; `body` holds the lines of its rule."""
    rule = "\n".join(f"    {line}" for line in (doc, *(body or (UPDATE,))) if line)
    state_list = f" {states}," if states else ""
    head = f"def Made({inputs}, /,{state_list} *, {hypers}):"
    parts = ["from optgen.spec import *", before, f"{decorator}\n{head}\n{rule}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def read(text: str) -> Algorithm:
    """Return the algorithm of a text that `spec` made."""
    return read_spec(Spec("made", text, "made.py", 1))[0]
