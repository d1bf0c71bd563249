"""Try an installed wheel: train beside torch.optim, then build and load a user's rule.

`release/test_wheel.sh` runs this file in an empty folder, which is on Python's import path.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

import torch

import optgen
import optgen.optim

RULE = '''from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Heavy(p, g, /, b=state("momentum_buffer"), *, lr=hyper(1e-2, ge=0), beta=hyper(0.9, ge=0)):
    """A heavy ball."""
    b = beta * b + g
    p = p - lr * b
'''


def trained_parameters(
    optimizer_class: type[torch.optim.Optimizer], lowering: str = "", **options: float
) -> torch.Tensor:
    """Return all parameters of a small model after five steps, as one vector."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    inputs, optimizer = torch.randn(32, 8), optimizer_class(model.parameters(), **options)
    for _ in range(5):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if lowering:
            with optgen.use_lowering(lowering):
                optimizer.step()
        else:
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def optgen_output(*arguments: str) -> str:
    """Return what the command `optgen` of this environment prints."""
    program = Path(sys.executable).parent / "optgen"
    return subprocess.run(
        [program, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def try_package() -> None:
    """Check that the package is the installed one, and that its version is the wheel's."""
    assert Path(optgen.__file__).is_relative_to(sys.prefix), optgen.__file__
    assert optgen.__version__ == importlib.metadata.version("optgen")
    assert optgen_output("--version") == f"optgen {optgen.__version__}\n"


def try_training() -> None:
    """Compare three lowerings with torch's own classes."""
    for name, options in (("AdamW", {"lr": 1e-2}), ("SGD", {"lr": 0.1, "momentum": 0.9})):
        expected = trained_parameters(getattr(torch.optim, name), **options)
        for lowering in ("forloop", "foreach", "fused_cpu"):
            actual = trained_parameters(getattr(optgen.optim, name), lowering, **options)
            torch.testing.assert_close(actual, expected)


def try_own_rule() -> None:
    """Write a rule, run the commands on it, and compare its classes with torch's SGD."""
    Path("heavy.py").write_text(RULE)
    assert "AdamW" in optgen_output("list")
    assert "momentum_buffer" in optgen_output("show", "heavy.py")
    optgen_output("check", "heavy.py", "--compile")
    optgen_output("build", "heavy.py", "--out", "mine")
    optgen_output("build", "heavy.py", "--out", "mine", "--check")
    expected = trained_parameters(torch.optim.SGD, lr=0.1, momentum=0.9)
    for cls in (importlib.import_module("mine.heavy").Heavy, optgen.load("heavy.py")):
        for lowering in ("forloop", "foreach", "fused_cpu"):
            torch.testing.assert_close(
                trained_parameters(cls, lowering, lr=0.1, beta=0.9), expected
            )


if __name__ == "__main__":
    try_package()
    try_training()
    try_own_rule()
    python, version = platform.python_version(), torch.__version__
    print(f"optgen {optgen.__version__} works with Python {python} and torch {version}")
