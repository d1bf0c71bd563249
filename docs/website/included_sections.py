"""Fill a page with sections of other pages, and leave out text that is not for the site.

`<!-- section: README.md#Install -->` stands for a section. The site lacks text between
`<!-- outside the site -->` and `<!-- end -->`: it tells readers of the repository of the site.
"""

from __future__ import annotations

import re

from website.entries import ROOT
from website.markdown_sections import section

_OUTSIDE = re.compile(r"<!-- outside the site -->.*?<!-- end -->", re.DOTALL)
_INCLUDED = re.compile(r"^<!-- section: (\S+?)#(.*?) -->$", re.MULTILINE)


def for_site(text: str) -> str:
    """Return a page without its text for readers of the repository."""
    return _OUTSIDE.sub("", text)


def filled(text: str, page: str) -> str:
    """Return a page with the sections that its comments name."""
    return _INCLUDED.sub(lambda match: section(ROOT / match[1], match[2], page), text)
