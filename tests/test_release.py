"""Test what a release needs: one version, supported versions, archives, the check of a commit.

`make test-dist` and `make test-wheel` test the archives of a whole checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import torch
from conftest import Golden

import optgen
import optgen.optim
from optgen.optim._published import PUBLISHED
from optgen.runtime.reader.trusted_torch import RELEASES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONING_PAGE = (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8")
EPOCH = 1_600_000_000  # seconds since 1970: the time of all files in an archive


def section(title: str) -> str:
    """Return a section of the page about versions."""
    return VERSIONING_PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def pythons() -> list[str]:
    """Return the versions of Python that pyproject.toml names."""
    return re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def test_other_files_name_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert f"\nversion: {optgen.__version__}\n" in citation
    assert f"version {optgen.__version__} will hold" in changes or (
        f"\n## [{optgen.__version__}] - " in changes
    )


def test_the_versioning_page_lists_the_public_names() -> None:
    names = set(re.findall(r"`optgen\.(\w+)`", section("Public names").split("\n\n")[0]))

    assert names - {"runtime"} == set(optgen.__all__)


def test_the_versioning_page_names_the_supported_versions() -> None:
    versions = section("torch and Python")

    assert f"torch {RELEASES[0]} to {RELEASES[-1]}" in versions
    assert f"Python {pythons()[0]} to {pythons()[-1]}" in versions
    assert PROJECT["requires-python"] == f">={pythons()[0]}"
    assert PROJECT["dependencies"] == [f"torch>={RELEASES[0]}"]


def test_checkpoints_of_published_optimizers_keep_their_keys(golden: Golden) -> None:
    """docs/versioning.md promises that later versions load checkpoints with these keys.

    A key may be added if an older checkpoint without it continues the same training.
    """
    lines = []
    for name in PUBLISHED.values():
        cls = getattr(optgen.optim, name)
        parameter = torch.nn.Parameter(torch.ones(2, 2))
        (group,) = cls([parameter]).state_dict()["param_groups"]
        keys = " ".join(key for key in group if key != "params")
        states = [state.key for state in cls.rule.states if not state.step_argument]
        step = ["step"] if cls.rule.step else []
        lines += [name, f"    groups: {keys}", f"    states: {' '.join(step + states)}"]

    golden.check("\n".join(lines))


def small_checkout(folder: Path) -> Path:
    """Write a checkout with the project's own configuration, and one module in each package."""
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder)
    for name in ("optgen", "specs", "templates", "generated", "tests"):
        (folder / name / "__pycache__").mkdir(parents=True)
        (folder / name / "__init__.py").write_text('__version__ = "1.2.3"\n')
        (folder / name / "__pycache__" / "__init__.cpython-311.pyc").touch()
    return folder


def build_source_archive(checkout: Path) -> Path:
    """Build the source archive of a checkout; return its path."""
    build = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(checkout.parent)],
        cwd=checkout,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
        check=True,
        capture_output=True,
    )
    return checkout.parent / "optgen-1.2.3.tar.gz"


def test_the_source_archive_has_the_same_bytes_from_another_folder(tmp_path: Path) -> None:
    """Times and modes of the files do not matter, and the archive has no owner and no cache."""
    first = small_checkout(tmp_path / "one" / "checkout")
    second = small_checkout(tmp_path / "another" / "place" / "and" / "folder")
    for path in second.rglob("*.py"):
        path.chmod(0o700)
        os.utime(path, (1, 1))

    archive_path = build_source_archive(first)

    assert archive_path.read_bytes() == build_source_archive(second).read_bytes()
    with tarfile.open(archive_path) as archive:
        members = archive.getmembers()
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(EPOCH, 0, 0, "", "")}
    names = {m.name.removeprefix("optgen-1.2.3/") for m in members}
    assert {"setup.py", "specs/__init__.py", "tests/__init__.py"} <= names
    assert not [name for name in names if "__pycache__" in name]


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder, independently of the user's name, signing and variables."""
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    command = ["git", *identity, "-c", "commit.gpgsign=false", *arguments]
    clean_env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(command, cwd=folder, env=clean_env, check=True, capture_output=True)


def refusals(folder: Path) -> str:
    """Return what the check of the last commit prints; nothing if the commit may be released."""
    check = subprocess.run(
        [sys.executable, ROOT / "release" / "check_commit.py"],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == bool(check.stderr), check.stderr
    return check.stderr


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_a_release_needs_a_tag_a_clean_tree_and_a_line_in_the_changelog(tmp_path: Path) -> None:
    """The check refuses a commit that lacks one of the three."""
    (tmp_path / "optgen").mkdir()
    (tmp_path / "optgen" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2030-01-02\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "one")
    assert "has no tag v1.2.3: git tag v1.2.3\n" in refusals(tmp_path)

    git(tmp_path, "tag", "v1.2.3")
    assert refusals(tmp_path) == ""

    (tmp_path / "new.txt").touch()
    assert "the tree has changes, first `?? new.txt`: commit or remove them" in refusals(tmp_path)

    (tmp_path / "new.txt").unlink()
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.30] - 2030-01-02\n")
    git(tmp_path, "commit", "--all", "--message", "two")
    git(tmp_path, "tag", "--force", "v1.2.3")
    assert refusals(tmp_path).count("\n") == 1
    assert "no line `## [1.2.3] - YEAR-MONTH-DAY`: add it" in refusals(tmp_path)
