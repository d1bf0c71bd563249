"""Run tests in Triton's interpreter.

The interpreter must be chosen before a kernel is decorated, and nothing compiles in a process that
has chosen it. So tests marked `inside_interpreter` run in processes of their own. The ordinary run
of a test file starts such a process.

Each process is forked from a fork server, which has imported the slow libraries and has run no
test.
"""

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside_interpreter = pytest.mark.skipif(
    not INTERPRETED, reason="runs in the process with the interpreter"
)
outside_interpreter = pytest.mark.skipif(
    INTERPRETED, reason="this is the process with the interpreter"
)

_ROOT = Path(__file__).parents[1]
_PRELOADED = ["pytest", "sympy", "torch_inputs", "warm_interpreter"]


def run_inside(file: str, keyword: str = "") -> str:
    """Run the tests of a file that are marked `inside_interpreter`, and that `-k keyword` selects.

    Fail if any of them fails. Return pytest's summary.
    """
    # Pytest warns that it cannot rewrite the asserts of a plugin that is already imported.
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    arguments = ["-q", "-p", "no:cacheprovider", "-W", ignored, "-k", keyword, file]
    with TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = _server().Process(target=_run, args=(arguments, str(output)))
        paths = os.pathsep.join([str(_ROOT), str(_ROOT / "tests"), *sys.path])
        with mock.patch.dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=paths):
            process.start()  # the first start also starts the fork server
        process.join()
        printed = output.read_text()
    assert process.exitcode == 0, printed
    summary = printed.splitlines()[-1]
    assert " passed" in summary
    return summary


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _run(arguments: list[str], output: str) -> None:
    with open(output, "w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.chdir(_ROOT)
    sys.exit(int(pytest.main(arguments)))


if INTERPRETED:
    import fast_interpreter

    fast_interpreter.install()
