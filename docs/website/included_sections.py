"""Fill a page with sections of other pages, and leave out text that is not for the site.

`<!-- section: README.md#Install -->` stands for a section. Text between
`<!-- outside the site -->` and `<!-- end -->` is for readers of the repository only.
"""

from __future__ import annotations

import re

from website.entries import ROOT
from website.markdown_sections import section

_REPOSITORY_ONLY = re.compile(r"<!-- outside the site -->.*?<!-- end -->", re.DOTALL)
_SECTION_COMMENT = re.compile(r"^<!-- section: (\S+?)#(.*?) -->$", re.MULTILINE)


def for_site(text: str) -> str:
    """Return a page without its text for readers of the repository."""
    return _REPOSITORY_ONLY.sub("", text)


def with_sections(text: str, page: str) -> str:
    """Return a page with the sections that its comments name."""
    return _SECTION_COMMENT.sub(lambda match: section(ROOT / match[1], match[2], page), text)
