"""Fill a page with sections of other pages: `<!-- section: README.md#Install -->`."""

from __future__ import annotations

import re

from website.entries import ROOT
from website.markdown_sections import section

_INCLUDED = re.compile(r"^<!-- section: (\S+?)#(.*?) -->$", re.MULTILINE)


def filled(text: str, page: str) -> str:
    """Return a page with the sections that its comments name."""
    return _INCLUDED.sub(lambda match: section(ROOT / match[1], match[2], page), text)
