"""Measure in a separate process: run a module that answers a request in JSON."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any


def ask(
    module: str,
    request: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Any:
    """Run a module in a new process and return its answer; None if it does not end in time.

    The new process has the import path of this process. After `timeout` seconds it is killed, with
    its children.

    Raises:
        RuntimeError: the module failed; the message holds its error output.
    """
    import_path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(request)],
        env={**os.environ, "PYTHONPATH": import_path, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            output, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(child)
            return None
    if child.returncode:
        raise RuntimeError(f"{module} failed on {request}:\n{errors}")
    return json.loads(output.splitlines()[-1])


def answer(function: Callable[..., Any]) -> None:
    """Call a function with the request of `ask`; print its result in JSON as the last line."""
    print(json.dumps(function(**json.loads(sys.argv[1]))))


def _kill(child: "subprocess.Popen[str]") -> None:
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
