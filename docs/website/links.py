"""Check the links of built pages: pages, files, anchors, and requests to other hosts."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
_LOADING_RELATIONS = {"stylesheet", "preload", "icon", "modulepreload", "preconnect", "manifest"}


@dataclass
class Outline:
    """The anchors of a page, its links, and the addresses that a browser loads to show it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    """Reader of a page's outline."""

    def __init__(self) -> None:
        super().__init__()
        self.outline = Outline()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.outline.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.outline.links.append(values["href"])
        if tag == "link" and _LOADING_RELATIONS & set(values.get("rel", "").split()):
            self.outline.loaded.append(values["href"])
        if values.get(_LOADED.get(tag, "")):
            self.outline.loaded.append(values[_LOADED[tag]])


def outline(html: str) -> Outline:
    """Return the outline of a page."""
    reader = _Reader()
    reader.feed(html)
    return reader.outline


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    pages: int
    inner: int  # links in the site, which were followed
    outer: int  # links to other hosts, which were not
    problems: tuple[str, ...]


def check(site: Path) -> Checked:
    """Check every page of a site. Links to other hosts are counted and not followed."""
    outlines = {
        str(path.relative_to(site)): outline(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
    }
    inner = outer = 0
    problems: list[str] = []
    for page, page_outline in outlines.items():
        for link in page_outline.links:
            if _is_outer(link):
                outer += 1
                continue
            inner += 1
            problems += _problems(site, outlines, page, link)
        for link in page_outline.loaded:
            if _is_outer(link):
                problems.append(f"{page}: the page loads {link} from another host")
            else:
                problems += _problems(site, outlines, page, link)
    return Checked(len(outlines), inner, outer, tuple(problems))


def _is_outer(link: str) -> bool:
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def _problems(site: Path, outlines: dict[str, Outline], page: str, link: str) -> Iterator[str]:
    """Yield what is wrong with a link to a page or a file of the site."""
    parts = urlsplit(link)
    path, anchor = unquote(parts.path), unquote(parts.fragment)
    folder = "" if path.startswith("/") else posixpath.dirname(page)
    target = posixpath.normpath(posixpath.join(folder, path.lstrip("/"))) if path else page
    if (site / target).is_dir():
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    if not (site / target).is_file():
        yield f"{page}: {link} leads nowhere"
    elif anchor and target in outlines and anchor not in outlines[target].anchors:
        yield f"{page}: {link} has no such anchor"
