"""Tests in Triton's interpreter: it must be chosen before a kernel is decorated, and where it is
nothing compiles, so they run in processes of their own that an ordinary run of the file starts.

Such a process is forked from one that has loaded what takes seconds, and run no test.
"""

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process with the interpreter")
outside = pytest.mark.skipif(INTERPRETED, reason="this is the process with the interpreter")

_ROOT = Path(__file__).parents[1]
_HEAVY = ["pytest", "sympy", "triton", "torch.testing._internal.common_optimizers"]


def run_inside(file: str, chosen: str = "") -> str:
    """Run the tests of a file that are marked `inside`, or those chosen; fail as they do.

    Returns pytest's summary.
    """
    loaded = "ignore::pytest.PytestAssertRewriteWarning"  # a plugin is among what is heavy
    arguments = ["-q", "-p", "no:cacheprovider", "-W", loaded, "-k", chosen, file]
    with TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = _server().Process(target=_run, args=(arguments, str(output)))
        with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
            process.start()  # the first also starts the process that all are forked from
        process.join()
        printed = output.read_text()
    assert process.exitcode == 0, printed
    summary = printed.splitlines()[-1]
    assert " passed" in summary
    return summary


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_HEAVY)
    return context


def _run(arguments: list[str], output: str) -> None:
    with open(output, "w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.chdir(_ROOT)
    sys.exit(int(pytest.main(arguments)))


def behave_like_a_device() -> None:
    """Mend what the interpreter does otherwise than every device: it truncates float32 to bfloat16
    where they round, garbles bfloat16 beside float64, makes a number of a truth value that it
    spreads over a block, and warns of infinities and NaN.
    """
    import numpy as np
    from triton import language as tl
    from triton.runtime import interpreter

    np.seterr(all="ignore")
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast, splat = builder.cast_impl, builder.create_splat
    wide = {tl.float32: torch.float32, tl.float64: torch.float64}

    def cast_as_devices_do(self: Any, source: Any, target: Any) -> Any:
        kind, wanted = source.dtype.scalar, target.scalar
        if wanted == tl.bfloat16 and kind in wide:
            rounded = torch.from_numpy(np.array(source.data)).to(torch.bfloat16)
            return handle(rounded.view(torch.uint16).numpy(), wanted)
        if kind == tl.bfloat16 and wanted in wide:
            bits = torch.from_numpy(np.array(source.data)).view(torch.bfloat16)
            return handle(bits.to(wide[wanted]).numpy(), wanted)
        return cast(self, source, target)

    def splat_as_devices_do(self: Any, kind: Any, source: Any) -> Any:
        spread = splat(self, kind, source)
        return handle(spread.data.astype(bool), tl.int1) if source.data.dtype == bool else spread

    builder.cast_impl, builder.create_splat = cast_as_devices_do, splat_as_devices_do


def patch_once_a_launch() -> None:
    """A launch has made the language the interpreter's; every call of a helper would do it again,
    which takes a third of the time. Triton's own helpers see the language under another name,
    which nobody mends afterwards: their first call does it for good.
    """
    from triton.runtime import interpreter

    function = interpreter.InterpretedFunction
    patching = function.__call__
    patched = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__.startswith("triton.") and self.fn not in patched:
            patched.add(self.fn)
            return patching(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    function.__call__ = call


if INTERPRETED:
    behave_like_a_device()
    patch_once_a_launch()
