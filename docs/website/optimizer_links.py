"""Make names of optimizers on a page links to their pages."""

from __future__ import annotations

import posixpath
import re

from website.entries import entries

LINKED_PAGES = ("catalogue.md", "choose.md")
"""Pages on which names become links. On other pages, most names are part of code."""
_NAME = re.compile(r"(?<!\[)`(?:optgen\.keyed\.)?(\w+)`")


def with_links(text: str, page: str) -> str:
    """Return a page whose names of classes and specs, in backquotes, are links."""
    pages = {name: each.page for each in entries() for name in (each.title, each.name)}
    pages["LBFGS"] = "api/optim.md#lbfgs"

    def link(match: re.Match[str]) -> str:
        if match[1] not in pages:
            return match[0]
        target = posixpath.relpath(pages[match[1]], posixpath.dirname(page) or ".")
        return f"[{match[0]}]({target})"

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if index % 2 else _NAME.sub(link, part) for index, part in enumerate(parts))
