"""Decide whether the C++ reader may read the memory of torch's objects.

On trusted releases of torch, the reader may do so at once. On any other release, a trial (trial.py)
must pass first.
"""

import os
import sys

import torch

from optgen.runtime.reader import trial
from optgen.runtime.reader.object_layout import UnknownLayoutError

RELEASES = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""The releases of torch that the tests have run on."""


def check(source: str) -> None:
    """Raise an `UnknownLayoutError` if the reader may not measure objects of this torch and Python.

    On a release of torch that is not trusted, the reader of the source text must pass its trial.

    `OPTGEN_TENSOR_READER` overrides the choice: "0" forbids measuring, "1" allows it on any torch.
    """
    setting = os.environ.get("OPTGEN_TENSOR_READER")
    if setting == "0":
        raise UnknownLayoutError("OPTGEN_TENSOR_READER=0 switches the reader off")
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise UnknownLayoutError("not CPython with an interpreter lock")
    is_trusted = ".".join(torch.__version__.split(".")[:2]) in RELEASES
    if not (setting == "1" or is_trusted or trial.passes(source)):
        raise UnknownLayoutError(f"the reader's trial on torch {torch.__version__} failed")
