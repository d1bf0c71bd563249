"""What becomes of a step whose kernel cannot be built."""

import re
from typing import Any

import pytest
from runtime.changes import give_gradients, parameters

import optgen
from optgen.optim import SGD, Adam
from optgen.runtime import fused_cpu
from optgen.runtime.fused_cpu import compiler


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nothing is compiled yet, and nothing is cached."""
    monkeypatch.setattr(fused_cpu, "_kernels", {})
    monkeypatch.setattr(fused_cpu, "_warned", set())
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path))


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
def test_a_kernel_that_cannot_be_built_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning has the compiler's words; what explain says is one whole sentence."""
    monkeypatch.setattr(fused_cpu, "complete", lambda source: "this is no C++\n")
    params = parameters()
    give_gradients(params, 0)
    way_out = r"could not build fused_cpu\.cpp; set CXX to a compiler that knows C\+\+17"
    with pytest.warns(UserWarning, match=rf"(?s)slow: .*{way_out}\n.*error"):
        Adam(params).step()
    SGD(params).step()  # cannot be built either: the same is not said twice

    assert "could not build" in optgen.explain(SGD(params))
    assert re.fullmatch(rf"group 0: [^:\n]+: \S+ {way_out}", optgen.explain(Adam(params)))
