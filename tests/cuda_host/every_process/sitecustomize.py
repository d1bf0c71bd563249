"""Emulate CUDA devices in a program and in the Python processes that it starts.

Python imports this module by its name at the start of a process, if the folder is on its path:
`make emulate-cuda RUN=…` puts it there. Faults are printed at the end of a process.
"""

from __future__ import annotations

import atexit
import sys
from contextlib import ExitStack

from cuda_host import kernels_on_cpu
from cuda_host.emulated_runtime import take_faults
from cuda_host.operations_on_cpu import OperationsOnCpu, printable_tensors

_until_the_end = ExitStack()


@atexit.register
def _tell_faults() -> None:
    for fault in take_faults():
        print(f"FAULT {fault}", file=sys.stderr)


kernels_on_cpu.install()
_until_the_end.enter_context(printable_tensors())
_until_the_end.enter_context(OperationsOnCpu())
