"""List the generated pages, and the files of the repository that pages link to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from website import api_pages, benchmark_pages, decisions, gallery, optimizer_page
from website.entries import ROOT, entries
from website.groups import grouped
from website.included_sections import for_site, with_sections
from website.markdown_sections import PAGES, linked_files, relink, site_path

FRONT = Path(__file__).with_name("front_page.txt")
_OPTIMIZERS = "<!-- optimizers -->"
_SHOWN_MEMBERS = 6
"""Members of a group that the front page names."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of each generated page."""
    yield "index.md", front_page()
    yield "optimizers/index.md", optimizer_page.index()
    for entry in entries():
        yield entry.page, optimizer_page.page(entry)
    yield "schedule-gallery.md", gallery.page()
    yield "benchmarks/index.md", benchmark_pages.index()
    yield "benchmarks/cpu.md", benchmark_pages.cpu()
    yield "benchmarks/triton-registers.md", benchmark_pages.registers()
    yield "benchmarks/triton-speed.md", benchmark_pages.predicted_speed()
    for reference in api_pages.references():
        yield reference.page, api_pages.page(reference)
    yield "api/commands.md", api_pages.commands()
    yield "decisions/index.md", decisions.page()
    for source in linked_pages():
        text = (ROOT / source).read_text(encoding="utf-8")
        yield site_path(source), relink(text, source, site_path(source))
    for source, page in PAGES.items():
        if source.endswith(".md") and source != "README.md":
            text = for_site((ROOT / source).read_text(encoding="utf-8"))
            yield page, relink(text, source, page)


def front_page() -> str:
    """Return the front page: sections of the README, and the groups of optimizers."""
    text = with_sections(FRONT.read_text(encoding="utf-8"), "index.md")
    return text.replace(_OPTIMIZERS, "\n".join(_group_lines()))


def _group_lines() -> Iterator[str]:
    """Yield a line for each group of optimizers, with its first members."""
    for group, members in grouped():
        links = [f"[{each.title}]({each.page})" for each in members[:_SHOWN_MEMBERS]]
        if more := len(members) - len(links):
            links.append(f"[{more} more](optimizers/index.md#{group.anchor})")
        yield f"* **{group.title}**: {', '.join(links)}"


@functools.cache
def repository_files() -> tuple[str, ...]:
    """Return the files that pages link to, outside docs/ and `PAGES`.

    A Markdown file among them becomes a page, so the files that it links to are in the list, too.
    """
    sources = [
        str(page.relative_to(ROOT)) for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    ]
    linked: set[str] = set()
    while sources:
        source = sources.pop()
        text = (ROOT / source).read_text(encoding="utf-8")
        new = linked_files(text, source) - linked
        linked |= new
        sources += [each for each in new if each.endswith(".md")]
    return tuple(sorted(linked))


def linked_pages() -> tuple[str, ...]:
    """Return the Markdown files among `repository_files()`."""
    return tuple(path for path in repository_files() if path.endswith(".md"))
