"""Test that generated/ is what the specs give, to the byte and for any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optgen.emit import MARK

ROOT = Path(__file__).parent.parent
SPECS = sorted(p.stem for p in (ROOT / "specs").glob("*.py") if p.stem != "__init__")
GENERATED = ROOT / "generated"
FILES = sorted(p for p in GENERATED.glob("*/**/*") if p.suffix in (".py", ".cpp"))


def files_of(spec: str) -> list[Path]:
    """Return the generated files of a spec."""
    return [path for path in FILES if path.relative_to(GENERATED).parts[0] == spec]


def generated_bytes(folder: Path) -> dict[str, bytes]:
    """Return every generated file below a folder, by its path in the folder."""
    files = (p for p in folder.glob("*/**/*") if p.suffix in (".py", ".cpp"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.mark.thorough
def test_a_build_writes_the_bytes_that_are_checked_in(tmp_path: Path) -> None:
    """A build with an unusual hash seed writes exactly the files that are checked in."""
    subprocess.run(
        [sys.executable, "-m", "optgen", "build", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        check=True,
        capture_output=True,
    )

    assert generated_bytes(GENERATED) == generated_bytes(tmp_path)


def test_every_spec_is_generated() -> None:
    assert SPECS == sorted({p.relative_to(GENERATED).parts[0] for p in FILES})


@pytest.mark.parametrize("spec", SPECS)
def test_a_header_names_the_spec_and_the_command(spec: str) -> None:
    """The first lines say where a file comes from and what to do instead of editing it."""
    for path in files_of(spec):
        first, second, _ = path.read_text(encoding="utf-8").split("\n", 2)
        comment = "//" if path.suffix == ".cpp" else "#"

        assert first == f"{comment} {MARK} from specs/{spec}.py."
        assert second == f"{comment} Do not edit: change the spec, then run optgen build."


@pytest.mark.parametrize("spec", SPECS)
def test_generated_code_reads_as_if_written_by_hand(spec: str) -> None:
    """No lint exemptions, no numbered temporaries, no path of the machine that built the files."""
    for path in files_of(spec):
        text = path.read_text(encoding="utf-8")
        for word in ("noqa", "_tmp", "if True", "if False", str(ROOT)):
            assert word not in text, path
