"""Implement `optgen new`, which writes a spec to start from."""

from __future__ import annotations

from pathlib import Path

import typer

from optgen.cli.locate_specs import find_checkout, shorten
from optgen.emit import write_atomically
from optgen.spec.reserved_names import is_snake_case

_SKELETON = '''"""{name}: say here where it comes from, and how the rule differs from the paper."""

from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/")
def {name}(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    *,
    lr=hyper(1e-3, ge=0),
    beta=hyper(0.9, ge=0, lt=1),
):
    """Gradient descent along a running mean of the gradients, corrected for its start at zero."""
    m = beta * m + (1 - beta) * g
    p = p - lr * m / (1 - beta**t)
'''

# For files outside of a checkout. Inside, pyproject.toml has this exception.
_NOQA = "# ruff: noqa: B008 (a declaration is read and never run)\n"


def write(name: str) -> Path:
    """Write the skeleton of a new spec and return its path. An existing file is an error."""
    if not is_snake_case(name):
        raise typer.BadParameter(f"{name} is not in snake_case, as the name of a spec file must be")
    checkout = find_checkout()
    path = shorten((checkout.specs if checkout else Path.cwd()) / f"{name}.py")
    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose another name")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    text = _SKELETON.format(name=class_name)
    write_atomically(path, text if checkout else _NOQA + text)
    return path
