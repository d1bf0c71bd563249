"""Build exactly the libraries that are asked for, as a user's process does."""

import fast_builds
import pytest

from optgen.runtime.toolchain import dtype_variants


@pytest.fixture(autouse=True)
def exact_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the shortcuts of `tests/conftest.py`: more dtypes in one library, few optimizations."""
    monkeypatch.setattr(dtype_variants, "build", fast_builds.build_exactly)
    monkeypatch.setattr(dtype_variants, "find_built", fast_builds.find_exactly)
