"""Test fused C++ steps while other threads replace tensors, or another process compiles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(script: str) -> None:
    process = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr


# The tensors are so large that their memory is returned to the system as soon as it is free.
DISTURBED = """
import sys, threading, time, torch, optgen.optim
torch.set_num_threads(1)
n = 8_000_000
param = torch.nn.Parameter(torch.zeros(n))
optimizer = optgen.optim.SGD([param], lr=0.1, momentum=0.9)
param.grad = torch.ones(n)
for _ in range(2):
    optimizer.step()
assert optimizer._context.cached_step is not None
stop = False
def disturb():
    while not stop:
        time.sleep(0.001)
        {action}
thread = threading.Thread(target=disturb)
thread.start()
try:
    for _ in range(30):
        param.grad = torch.ones(n)
        optimizer.step()
finally:
    stop = True
    thread.join()
assert param.isfinite().all()
"""


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize(
    "action",
    [
        "optimizer.state[param]['momentum_buffer'] = torch.zeros(n)",
        # `owner` is a second owner of the gradient. Without it, torch frees the tensor while
        # param.grad still refers to it, and lets other threads run meanwhile: reading param.grad
        # then crashes, also in torch.
        "owner = param.grad; param.grad = None; owner = None",
        "param.grad = torch.ones(n); optimizer.step()",
    ],
    ids=["a state", "a gradient", "a step"],
)
def test_another_thread_may_replace_tensors_during_a_step(action: str) -> None:
    run(DISTURBED.format(action=action))


def test_a_long_kernel_owns_no_tensor_after_the_step() -> None:
    run(
        """
import torch, optgen.optim
param = torch.nn.Parameter(torch.zeros(2_000_000))
optimizer = optgen.optim.SGD([param], lr=0.1, momentum=0.9)
for _ in range(4):
    param.grad = torch.ones_like(param)
    optimizer.step()
assert optimizer._context.cached_step is not None
def owners(tensor):
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
tensors = param, param.grad, optimizer.state[param]["momentum_buffer"]
before = list(map(owners, tensors))
optimizer.step()
assert before == list(map(owners, tensors)), before
storage = param.grad.untyped_storage()
owner_count = torch._C._storage_Use_Count(storage._cdata)
del tensors
param.grad = None
assert torch._C._storage_Use_Count(storage._cdata) == owner_count - 1
"""
    )


# Each compiler waits until the other has been started too.
WAITING_COMPILER = """#!/bin/sh
touch {folder}/started.$$
for try in $(seq 100); do
    [ $(ls {folder} | grep -c started) -ge 2 ] && exec {compiler} "$@"
    sleep 0.1
done
exit 1
"""


def test_the_kernel_and_the_reader_are_built_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "waiting"
    real = os.environ.get("CXX", "g++")
    compiler.write_text(WAITING_COMPILER.format(folder=tmp_path, compiler=real))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "cache"))
    run("""
import torch, optgen.optim
param = torch.nn.Parameter(torch.zeros(3))
param.grad = torch.ones(3)
optimizer = optgen.optim.SGD([param])
optimizer.step()
assert optimizer._context.cached_step is not None
""")
