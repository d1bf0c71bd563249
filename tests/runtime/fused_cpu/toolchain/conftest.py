"""Build exactly the libraries that are asked for, as a user's process does."""

import pytest
import wide_libraries

from optgen.runtime.fused_cpu.toolchain import dtype_variants


@pytest.fixture(autouse=True)
def exact_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the shortcuts of `tests/conftest.py`: more dtypes in one library, few optimizations."""
    monkeypatch.setattr(dtype_variants, "build", wide_libraries.build_exactly)
    monkeypatch.setattr(dtype_variants, "find_built", wide_libraries.find_exactly)
