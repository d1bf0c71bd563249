"""Extract sections of Markdown files, and change their links for another page."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from website.entries import ROOT

_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]*)((?:#[^)\s]*)?\))")
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "docs/decisions": "decisions/index.md",
}
"""Pages for paths of the repository. Other files of docs/ have pages of the same relative path."""


def site_path(path: str) -> str:
    """Return the site's page or file for a path of the repository."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def relink(text: str, source: str, page: str) -> str:
    """Return Markdown with links that are right on a page of the site.

    Args:
        text: Markdown from a file of the repository.
        source: the path of that file in the repository; its links are relative to it.
        page: the path of the page in the site.
    """
    folder, page_folder = posixpath.dirname(source), posixpath.dirname(page)

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2]))
        if not (ROOT / target).exists():
            return match[0]  # a generated page; the check of the finished site looks for it
        return f"{match[1]}{posixpath.relpath(site_path(target), page_folder or '.')}{match[3]}"

    return _LINK.sub(link, text)


def linked_files(text: str, source: str) -> set[str]:
    """Return the files that a text links to, outside docs/ and `PAGES`."""
    folder = posixpath.dirname(source)
    targets = {posixpath.normpath(posixpath.join(folder, m[2])) for m in _LINK.finditer(text)}
    return {t for t in targets if (ROOT / t).is_file() and site_path(t).startswith("repository/")}


def section(path: Path, title: str, page: str) -> str:
    """Return the text below a second-level heading, with links that are right on a page.

    The empty title stands for the title of the file.
    """
    text = path.read_text(encoding="utf-8")
    heading = rf"## {re.escape(title)}" if title else "# .*?"
    match = re.search(rf"^{heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"{path.name} has no section {title!r}")
    return relink(match[1].strip(), str(path.relative_to(ROOT)), page)
