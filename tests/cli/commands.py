"""Run optgen's commands in a test, make a checkout, and read all files of a folder."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from optgen.cli.app import app

ROOT = Path(__file__).parent.parent.parent
RULE = '''from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Heavy(p, g, /, b=state("momentum_buffer"), *, lr=hyper(1e-2, ge=0), beta=hyper(0.9, ge=0)):
    """A heavy ball."""
    b = beta * b + g
    p = p - lr * b
'''


def run(*arguments: str) -> Result:
    """Run one command line in this process."""
    return CliRunner().invoke(app, list(arguments), prog_name="optgen")


def make_checkout(folder: Path, name: str, text: str) -> None:
    """Make `folder`, the current folder, a checkout with one spec, and build it."""
    (folder / "pyproject.toml").write_text('[project]\nname = "optgen"\n')
    (folder / "specs").mkdir()
    (folder / "specs" / name).write_text(text)
    assert run("build").exit_code == 0


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the modification time of every file below a folder."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}
