"""Configure pytest: golden files, compiled libraries in build/cache, one thread for each worker.

The workers of a run share the cores. With two threads each, they would wait for each other at every
barrier. A test may still ask for more threads.
"""

from __future__ import annotations

import gc
import os
import re
from dataclasses import dataclass
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import fast_builds
import interpreter  # noqa: F401  (speeds up Triton's interpreter where it is chosen)
import pytest
import sampling

gc.disable()  # until all tests are collected: pytest_collection_finish enables it again
fast_builds.install()
os.fsync = lambda descriptor: None  # faster, and no file of a test must survive a loss of power
GOLDEN = Path(__file__).parent / "golden"
os.environ.setdefault("OPTGEN_CACHE_DIR", str(Path(__file__).parent.parent / "build" / "cache"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/ instead of comparing"
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="run the cases that make test leaves out, too",
    )
    parser.addoption(
        "--every-case",
        action="store_true",
        help="run the cases that make test-thorough leaves out, too",
    )


def pytest_configure(config: pytest.Config) -> None:
    sampling.configure(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases, but only from those that `-k` and `-m` have selected."""
    sampling.deselect(config, items)


def pytest_collection_finish() -> None:
    """Freeze torch and the collected tests, so that no garbage collection searches them."""
    gc.collect()
    gc.freeze()
    gc.enable()


@dataclass
class Golden:
    """Compares texts with the golden file of a test. A suffix lets one test check several texts."""

    stem: str
    update: bool

    def check(self, text: str, suffix: str = "") -> None:
        """Check that the text equals the golden file.

        With --update-golden, write the file instead.
        """
        path = GOLDEN / f"{self.stem}{'-' + suffix if suffix else ''}.txt"
        text = text.rstrip("\n") + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), (
            f"{path.name} is missing: run pytest --update-golden and read the new file"
        )
        assert text == path.read_text(encoding="utf-8"), f"differs from {path.name}"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return the golden file of this test: tests/golden/<file>/<test>.txt."""
    name = re.sub(r"[^\w]+", "-", request.node.name).strip("-")
    folder = request.path.stem.removeprefix("test_")
    return Golden(f"{folder}/{name}", request.config.getoption("--update-golden"))
