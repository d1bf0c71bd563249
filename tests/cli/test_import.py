"""Test that `optgen import` bears with any code, and says in one message what it met."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from optgen.cli import import_class
from optgen.spec.errors import SpecError

HEAD = """
import os, signal, sys, time
import torch


class Base(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, self.state[p], group)

    def update(self, p, grad, state, group):
        p.data.add_(grad, alpha=-group["lr"])


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


"""
REFUSED = {
    "exits": ("sys.exit(3)", "SystemExit: 3"),
    "ends": ("os._exit(3)", "ends the process, with the status 3"),
    "loops": ("while True: pass", "no answer after 12 s: --seconds allows more"),
    "ignores signals": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 30)); time.sleep(1000)",
        "no answer after 12 s",
    ),
    "100 GB": ("torch.ones(100 * 2**30 // 4)", r"mine.py:\d+: .*allocate memory"),
    "no memory": (
        "x = [bytearray(2**28) for _ in range(1000)]",
        r"mine.py:\d+: .*MemoryError|may lack memory",
    ),
    "an error": ("raise BaseException('\\x1b[31mred')", r"BaseException: \?\[31mred"),
    "a long error": ("raise ValueError('x' * 10**8)", "ValueError: xx.* …$"),
    "an error without a text": ("raise NoText()", "the class fails here: RuntimeError: no text"),
    "kills itself": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV ends the process"),
    "deletes its state": ("del self.state", "the class fails here: AttributeError"),
    "recursion": ("self.update(p, grad, state, group)", "RecursionError"),
    "writes into the pipe": (
        "[os.write(fd, b'abcd') for fd in range(3, 99) if os.path.exists(f'/proc/self/fd/{fd}')]",
        "no answer that can be read|the class fails here|ends the process",
    ),
}
IMPORTED = {
    "prints": "print('noise'); os.write(1, b'noise'); os.system('echo noise')",
    "forks": "sys.forked = getattr(sys, 'forked', 0) or os.fork() or time.sleep(1000)",
    "forks and goes on": "sys.forked = sys.forked if hasattr(sys, 'forked') else os.fork()",
}


def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, seconds: float = 120) -> bool:
    """Import a class whose update begins with `body`."""
    update = "class Mine(Base):\n    def update(self, p, grad, state, group):\n"
    rest = "super().update(p, grad, state, group)"
    code = HEAD + update + textwrap.indent(f"{body}\n{rest}\n", " " * 8)
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return import_class.run(import_class.Request("mine:Mine", [], None, seconds, 4.0))


@pytest.mark.one_case_in(len(REFUSED))
@pytest.mark.parametrize("name", REFUSED)
def test_hostile_code_ends_in_one_message(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    body, message = REFUSED[name]

    assert not ask(tmp_path, monkeypatch, body, 12 if "no answer after 12" in message else 120)

    out, err = capfd.readouterr()
    first, rest = err.split("\n", 1)
    assert first == "running the code of mine:Mine in a process of its own"
    assert re.search(message, rest.strip())
    assert "Traceback" not in err
    assert len(err) < 3000
    assert not out


@pytest.mark.one_case_in(len(IMPORTED))
@pytest.mark.parametrize("name", IMPORTED)
def test_what_a_class_writes_and_starts_does_not_come_out(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert ask(tmp_path, monkeypatch, IMPORTED[name])

    out, err = capfd.readouterr()
    assert out.startswith('"""Mine, imported from mine."""\n')
    assert out.endswith("    p = p - lr * grad\n")
    assert "noise" not in out + err
    assert "mine:Mine agrees with its import" in err


@pytest.mark.thorough
def test_a_module_that_changes_torch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    body = "torch.Tensor.sqrt = torch.Tensor.exp"

    assert not ask(tmp_path, monkeypatch, body)

    assert "mine changes Tensor.sqrt, so a proof here says nothing" in capfd.readouterr().err


def test_a_text_of_a_stranger_is_made_harmless() -> None:
    assert import_class._printable("a\x1b[0m\nb") == "a?[0m\nb"
    assert len(import_class._printable("x" * 10**6)) < 3000


def test_a_silent_end_has_a_reason() -> None:
    assert "SIGKILL ends the process" in import_class._silence(-9)
    assert "with the status 3" in import_class._silence(3)


def test_a_file_that_could_not_be_loaded_is_refused_at_once(tmp_path: Path) -> None:
    request = import_class.Request("mine:Mine", [], tmp_path / "MyAdam.py", 1, 1)

    with pytest.raises(SpecError, match="in snake_case"):
        import_class.run(request)
