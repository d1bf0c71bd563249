"""Test that an import, a constructor and a CPU step load nothing that only a build needs."""

import subprocess
import sys

BUILDING = ("sympy", "jinja2", "typer", "ruff", "triton", "numpy", "torch._dynamo")
HEAVY = (*BUILDING, "torch.distributed.tensor", "torch.distributed._shard")

SCRIPT = """
import sys
import torch

before = set(sys.modules)  # torch itself imports numpy where there is one
heavy = {heavy!r}

def report(part):
    loaded = set(sys.modules) - before
    found = [m for m in loaded if m in heavy or m.startswith(tuple(h + "." for h in heavy))]
    print(part, *sorted(found))

{body}
"""

IMPORT = """
import optgen
import optgen.optim as optim
from optgen import explain, use_lowering
"""

PUBLISHED = """
optim.list_optimizers()
dir(optim)
assert "optgen.generated.lion" not in sys.modules
optim.Lion([torch.ones(1)])
assert "optgen.generated.lion" in sys.modules
assert "optgen.generated.tiger" not in sys.modules
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


INDENTED = STEP.strip().replace("\n", "\n    ")
PARTS = {
    "import": IMPORT,
    "published": PUBLISHED,
    "step": STEP,
    "keyed": KEYED,
    "forloop": f"with use_lowering('forloop'):\n    {INDENTED}",
    "foreach": f"with use_lowering('foreach'):\n    {INDENTED}",
}


def heavy_modules_after(parts: dict[str, str]) -> list[str]:
    """Run parts of a script in one new process.

    Return a line for each part: its name, and the heavy modules that are loaded after it.
    """
    body = "\n".join(f"{text}\nreport({part!r})" for part, text in parts.items())
    script = SCRIPT.format(body=body, heavy=HEAVY)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_the_check_sees_a_heavy_module():
    assert "jinja2" in heavy_modules_after({"heavy": "import jinja2"})[0].split()


def test_no_part_loads_a_heavy_module():
    assert heavy_modules_after(PARTS) == [*PARTS]
