"""Check that the last commit may be released: `python release/check_commit.py`, in the checkout.

It needs no package, and no environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def git(*arguments: str) -> str:
    """Return what git prints in the current folder."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def problems() -> Iterator[str]:
    """Yield what stands against a release of the last commit, each with a way out."""
    if changed := git("status", "--porcelain").splitlines():
        yield f"the tree has changes, first `{changed[0].strip()}`: commit or remove them"
    (version,) = re.findall('^__version__ = "(.+)"$', Path("optgen/__init__.py").read_text(), re.M)
    if f"v{version}" not in git("tag", "--points-at", "HEAD").split():
        yield f"the last commit has no tag v{version}: git tag v{version}"
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$",
        Path("CHANGELOG.md").read_text(encoding="utf-8"),
        re.M,
    ):
        yield f"CHANGELOG.md has no line `## [{version}] - YEAR-MONTH-DAY`: add it"


if __name__ == "__main__":
    found = list(problems())
    for problem in found:
        print(f"release/check_commit.py: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)
