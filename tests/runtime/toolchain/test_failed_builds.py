"""Test steps whose kernel cannot be built."""

import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime.changes import give_gradients, parameters

import optgen
from optgen.optim import SGD, Adam
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.reader import tensor_reader
from optgen.runtime.toolchain import compiler


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """Begin without compiled or cached kernels. At the end, forget the failed build of a reader."""
    monkeypatch.setattr(kernel_loader, "_kernels", {})
    monkeypatch.setattr(kernel_loader, "_warned_reasons", set())
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path))
    yield
    tensor_reader.reader.cache_clear()


@pytest.mark.usefixtures("no_kernels")
def test_without_a_compiler_steps_are_unfused_and_one_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "find", lambda: None)
    params = parameters()
    give_gradients(params, 0)
    with pytest.warns(UserWarning, match=r"slow.*no C\+\+ compiler.*install g\+\+"):
        Adam(params).step()
    Adam(params).step()
    SGD(params).step()

    assert "no C++ compiler" in optgen.explain(Adam(params))
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler"):
        Adam(params, fused=True).step()


@pytest.mark.usefixtures("no_kernels")
def test_on_windows_one_warning_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    params = parameters()
    give_gradients(params, 0)
    with pytest.warns(UserWarning, match=r"slow.*run Python in WSL") as caught:
        Adam(params).step()

    assert len(caught) == 1
    assert "foreach" in optgen.explain(Adam(params))


@pytest.mark.usefixtures("no_kernels")
def test_a_kernel_that_cannot_be_built_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning quotes the compiler; `explain` gives the reason in one sentence."""
    monkeypatch.setattr(kernel_loader, "inline_includes", lambda source: "this is no C++\n")
    params = parameters()
    give_gradients(params, 0)
    reason = r"not the source .* for `adam`, a defect of optgen: report it .*\(log: [^\n]+\.log\)"
    with pytest.warns(UserWarning, match=rf"(?s)slow: .*{reason}\n.*error") as warnings:
        Adam(params).step()
    Adam(params).step()  # cannot be built either; the warning is not repeated

    assert len(warnings) == 1
    assert re.fullmatch(rf"group 0: [^:\n]+: \S+ builds .*{reason}", optgen.explain(Adam(params)))


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("command", ["g++ '", "/nowhere/g++", "/tmp", "''"])
def test_a_warning_names_a_command_that_is_no_compiler(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", command)
    params = parameters()
    give_gradients(params, 0)
    with pytest.warns(UserWarning, match=rf"slow: .*CXX is .*{re.escape(command)}"):
        Adam(params).step()


@pytest.mark.usefixtures("no_kernels")
def test_a_compiler_that_hangs_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A later step of another class does not try the compiler again."""
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("CXX", str(hanging))
    monkeypatch.setenv("OPTGEN_COMPILE_TIMEOUT", "0.5")
    params = parameters()
    give_gradients(params, 0)
    begin = time.monotonic()

    with pytest.warns(UserWarning, match=r"took longer than 0\.5 seconds and was ended: set OPT"):
        Adam(params).step()
    SGD(params).step()

    assert time.monotonic() - begin < 30


@pytest.mark.usefixtures("no_kernels")
def test_a_warning_names_a_time_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTGEN_COMPILE_TIMEOUT", "5 minutes")
    params = parameters()
    give_gradients(params, 0)
    with pytest.warns(UserWarning, match=r"OPTGEN_COMPILE_TIMEOUT is '5 minutes': set it to sec"):
        Adam(params).step()
