"""Change every tensor between two steps, in every way, and watch what the kernels touch.

`make test-asan` runs these tests. Their kernels are compiled with -fsanitize=address; torch is not.
Each test runs in a child process, so a fault in one class does not end the others.
"""

import os
import sys
from pathlib import Path

import pytest
from sanitizers.training import class_names, run_changes, sharded
from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    return tensor


def last_case(log: Path) -> str:
    return (log.read_text().splitlines() or ["the first steps"])[-1]


CASES = [(name, "whole") for name in class_names()]
CASES += [(name, "sharded") for name in class_names() if name not in {"LBFGS", "SparseAdam"}]
"""Classes, and whether their tensors are whole or DTensors; the two take no DTensors."""


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_no_step_leaves_its_tensors(name: str, kind: str, tmp_path: Path) -> None:
    log = tmp_path / "cases"
    pid = os.fork()
    if not pid:
        status = 1
        try:
            shard = sharded() if kind == "sharded" else whole
            with log.open("w", buffering=1) as file:
                for case in run_changes(name, shard):
                    print(case, file=file)
            status = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the process ended at: {last_case(log)}"
