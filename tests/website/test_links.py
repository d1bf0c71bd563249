"""Test the link checker on a small site with right and wrong links."""

from __future__ import annotations

from pathlib import Path

from website.links import check_links

PAGE = """<html><head><link rel="stylesheet" href="a.css"><link rel="canonical" href="https://x.org">
</head><body><h1 id="top">A</h1><a href="b/">right</a><a href="b/#there">right</a><a href="#top">
right</a><a href="https://example.org/away">out</a>{}</body></html>"""


def site(folder: Path, extra_html: str) -> Path:
    """Write a site of two pages, the first with extra HTML; return its folder."""
    (folder / "b").mkdir()
    (folder / "a.css").write_text("")
    (folder / "index.html").write_text(PAGE.format(extra_html))
    (folder / "b" / "index.html").write_text('<p id="there"><a href="../">back</a></p>')
    return folder


def test_right_links_are_counted(tmp_path: Path) -> None:
    report = check_links(site(tmp_path, ""))

    assert (report.pages, report.internal, report.external, report.problems) == (2, 4, 1, ())


def test_wrong_links_are_named(tmp_path: Path) -> None:
    wrong_links = (
        '<a href="c/">no page</a><a href="b/#away">no anchor</a><a href="#nowhere">no anchor</a>'
        '<img src="missing.png"><script src="https://example.org/a.js"></script>'
    )

    assert check_links(site(tmp_path, wrong_links)).problems == (
        "index.html: c/ leads nowhere",
        "index.html: b/#away has no such anchor",
        "index.html: #nowhere has no such anchor",
        "index.html: missing.png leads nowhere",
        "index.html: the page loads https://example.org/a.js from another host",
    )
