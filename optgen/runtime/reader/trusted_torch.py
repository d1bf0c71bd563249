"""Decide whether the C++ reader may read the memory of torch's objects; try it in a child process.

On trusted releases of torch, the reader may do so at once. On any other release, this torch may
have another object layout, and measuring it could crash the process. So a child process measures
first, and takes steps that are compared with torch's. The result of the trial is stored beside the
kernels, for this torch, this Python and this source text of the reader.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.cache import files
from optgen.runtime.cache.files import exclusive, folders
from optgen.runtime.reader.object_layout import UnknownLayoutError

RELEASES = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""The releases of torch that the tests have run on."""


def check_reader_allowed(source: str) -> None:
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
    if not (setting == "1" or is_trusted or passes(source)):
        raise UnknownLayoutError(f"the reader's trial on torch {torch.__version__} failed")


_TIME_LIMIT = 120.0  # seconds; a trial takes about five seconds, most of them for torch's import
_PASSED, _FAILED = b"passed\n", b"failed\n"


def passes(source: str) -> bool:
    """Tell whether the reader of a source text passes its trial; run the trial if it is new."""
    file = f"tensor_reader-{_digest(source)}.trial"
    for folder in folders():
        with exclusive(folder / file):
            verdict = _saved_verdict(folder / file) or _run_trial()
            with suppress(OSError):  # without a stored verdict, the next process runs the trial
                files.write(folder / file, verdict)
            return verdict == _PASSED
    return False


def _saved_verdict(path: Path) -> bytes | None:
    try:
        verdict = files.read(path)
    except OSError:
        return None
    return verdict if verdict in (_PASSED, _FAILED) else None


def _run_trial() -> bytes:
    """Run the trial in a child process; a crash, an error or a timeout counts as failed."""
    environment = dict(os.environ) | {
        "OPTGEN_TENSOR_READER": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    program = f"from {__name__} import main; raise SystemExit(main())"
    command = [sys.executable, "-P", "-c", program]  # -P: no import from the current folder
    try:
        result = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIME_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _FAILED
    return _PASSED if result.returncode == 0 else _FAILED


def _digest(source: str) -> str:
    folder = Path(__file__).parent
    texts = [(folder / name).read_text() for name in ("object_layout.py", "trusted_torch.py")]
    versions = [torch.__version__, str(torch.version.git_version), sys.version, sys.platform]
    return hashlib.sha256("\0".join([*versions, source, *texts]).encode()).hexdigest()[:16]


def main() -> int:
    """Take steps with the reader and with torch; return 0 if they agree and the reader was used."""
    from optgen import optim

    torch.manual_seed(0)
    read_for_sgd = _compare(optim.SGD, torch.optim.SGD, lr=0.1, momentum=0.9)
    read_for_adam = _compare(optim.Adam, torch.optim.Adam, lr=0.1, amsgrad=True)
    return 0 if read_for_sgd and read_for_adam else 1


def _compare(our_class: Any, torch_class: Any, **arguments: Any) -> bool:
    """Compare steps with torch's, on tensors that the reader can read, and on other tensors.

    Return whether the reader has read the readable tensors. Raise a `ValueError` if steps differ.
    """
    readable = list(_tensors())
    unreadable = [*_tensors(), torch.randn(4, 3).t().requires_grad_()]  # the reader gives up
    optimizer = _take_steps(our_class, torch_class, readable, arguments)
    _take_steps(our_class, torch_class, unreadable, arguments)
    return optimizer._context.cached_step is not None


def _take_steps(
    our_class: Any, torch_class: Any, tensors: list[Tensor], arguments: dict[str, Any]
) -> Any:
    """Take steps of both optimizers, and return ours; raise a `ValueError` if results differ."""
    copies = [tensor.detach().double().clone().requires_grad_() for tensor in tensors]
    optimizer = our_class(tensors, **arguments)
    torch_optimizer = torch_class(copies, foreach=False, **arguments)
    for step in range(6):
        _give_gradients(tensors, copies, step)
        if step == 4:
            _replace_state(optimizer.state)
        optimizer.step()
        torch_optimizer.step()
        if not all(map(_agree, tensors, copies)):
            raise ValueError(f"step {step} has another result than torch's")
    return optimizer


def _tensors() -> Iterator[Tensor]:
    """Yield parameters of every dtype and of many shapes."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for shape in ((), (1,), (7,), (3, 5), (2, 1, 3, 2, 1, 2), (0,), (4, 0)):
            yield torch.nn.Parameter(torch.randn(shape).to(dtype))


def _give_gradients(tensors: list[Tensor], copies: list[Tensor], step: int) -> None:
    """Set new gradients; in every third step one tensor gets none."""
    for index, (tensor, copy) in enumerate(zip(tensors, copies, strict=True)):
        grad = torch.randn(tensor.shape).to(tensor.dtype)
        has_no_grad = step % 3 == 2 and index == 3
        tensor.grad, copy.grad = (None, None) if has_no_grad else (grad, grad.double().clone())


def _replace_state(state: dict[Tensor, dict[str, Tensor]]) -> None:
    """Replace every state by a copy in new memory, which the reader must find."""
    for values in state.values():
        for name, value in values.items():
            values[name] = value.clone()


def _agree(tensor: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-5 if tensor.dtype in (torch.float32, torch.float64) else 5e-2
    return torch.allclose(tensor.double(), expected, rtol=tolerance, atol=tolerance)
