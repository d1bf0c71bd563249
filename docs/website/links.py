"""Check the links of built pages: pages, files, anchors, and requests to other hosts."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_SOURCE_ATTRIBUTES = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
}
_LOADING_RELATIONS = {"stylesheet", "preload", "icon", "modulepreload", "preconnect", "manifest"}


@dataclass
class Outline:
    """A page's anchors, its links, and the addresses that a browser loads to show the page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded_links: list[str] = field(default_factory=list)


class _OutlineParser(HTMLParser):
    """Parser of a page's outline."""

    def __init__(self) -> None:
        super().__init__()
        self.outline = Outline()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.outline.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.outline.links.append(values["href"])
        if tag == "link" and _LOADING_RELATIONS & set(values.get("rel", "").split()):
            self.outline.loaded_links.append(values["href"])
        if values.get(_SOURCE_ATTRIBUTES.get(tag, "")):
            self.outline.loaded_links.append(values[_SOURCE_ATTRIBUTES[tag]])


def outline(html: str) -> Outline:
    """Return the outline of a page."""
    parser = _OutlineParser()
    parser.feed(html)
    return parser.outline


@dataclass(frozen=True)
class LinkReport:
    """The result of a check."""

    pages: int
    internal: int  # links in the site, which were followed
    external: int  # links to other hosts, which were not
    problems: tuple[str, ...]


def check_links(site: Path) -> LinkReport:
    """Check every page of a site. Links to other hosts are counted and not followed."""
    outlines = {
        str(path.relative_to(site)): outline(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
    }
    internal = external = 0
    problems: list[str] = []
    for page, page_outline in outlines.items():
        for link in page_outline.links:
            if _is_external(link):
                external += 1
                continue
            internal += 1
            problems += _link_problems(site, outlines, page, link)
        for link in page_outline.loaded_links:
            if _is_external(link):
                problems.append(f"{page}: the page loads {link} from another host")
            else:
                problems += _link_problems(site, outlines, page, link)
    return LinkReport(len(outlines), internal, external, tuple(problems))


def _is_external(link: str) -> bool:
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def _link_problems(site: Path, outlines: dict[str, Outline], page: str, link: str) -> Iterator[str]:
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
