"""Both ways in which a fused C++ step can find its tensors."""

import importlib

import pytest

repeat = importlib.import_module("optgen.runtime.fused_cpu.repeat")  # beside a function so called


@pytest.fixture(params=["read in C++", "gathered in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a step can find its tensors."""
    if request.param == "gathered in Python":
        monkeypatch.setattr(repeat, "reader", lambda: None)
    return str(request.param)
