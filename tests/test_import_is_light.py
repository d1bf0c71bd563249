"""Test that an import, a constructor and a CPU step load nothing that only a build needs."""

import subprocess
import sys

import pytest

BUILDING = ("sympy", "jinja2", "typer", "ruff", "triton", "numpy", "torch._dynamo")
HEAVY = (*BUILDING, "torch.distributed.tensor", "torch.distributed._shard")

SCRIPT = """
import sys
import torch

before = set(sys.modules)  # torch itself imports numpy where there is one
{body}
loaded = set(sys.modules) - before
heavy = {heavy!r}
print(*sorted(m for m in loaded if m in heavy or m.startswith(tuple(h + "." for h in heavy))))
"""

IMPORT = """
import optgen
import optgen.optim as optim
from optgen import explain, use_lowering
"""

STEP = """
params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))]
for param in params:
    param.grad = torch.ones_like(param)
optimizer = optim.Adam(params)
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.step(lambda: 1.0)
optimizer.zero_grad()
explain(optimizer)
optimizer = optim.LBFGS(params)
optimizer.step(lambda: sum((param * param).sum() for param in params))
optimizer.step(lambda: 1.0)
optimizer.load_state_dict(optimizer.state_dict())
"""

KEYED = """
from optgen import keyed
params = {"weight": torch.nn.Parameter(torch.ones(3))}
wrapper = keyed.KeyedOptimizerWrapper(params, optim.AdamW)
optimizer = keyed.WarmupOptimizer(keyed.CombinedOptimizer([("a", wrapper)]), [])
optimizer.init_state()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.step()
optimizer.zero_grad()
"""


def loaded(body: str) -> str:
    script = SCRIPT.format(body=body, heavy=HEAVY)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_the_check_sees_a_heavy_module():
    assert "jinja2" in loaded("import jinja2").split()


@pytest.mark.parametrize(
    "body",
    [
        IMPORT,
        IMPORT + STEP,
        IMPORT + KEYED,
        IMPORT + "with use_lowering('forloop'):\n    " + STEP.strip().replace("\n", "\n    "),
        IMPORT + "with use_lowering('foreach'):\n    " + STEP.strip().replace("\n", "\n    "),
    ],
    ids=["import", "step", "keyed", "forloop", "foreach"],
)
def test_nothing_heavy_is_loaded(body):
    assert loaded(body) == ""
