"""Check that the last commit may be released.

Run `python release/check_commit.py` in the root of the checkout. It needs no packages.
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
    """Yield the obstacles to a release of the last commit, each with a remedy."""
    if changed := git("status", "--porcelain").splitlines():
        yield f"the tree has changes, first `{changed[0].strip()}`: commit or remove them"
    package = Path("optgen/__init__.py").read_text(encoding="utf-8")
    match = re.search('^__version__ = "(.+)"$', package, re.M)
    if match is None:
        yield 'optgen/__init__.py has no line `__version__ = "X.Y.Z"`: add it'
        return
    version = match[1]
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
