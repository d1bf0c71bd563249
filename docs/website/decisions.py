"""Write the page that lists the decisions."""

from __future__ import annotations

from website.entries import ROOT
from website.tables import table

FOLDER = ROOT / "docs" / "decisions"


def titles() -> list[tuple[str, str, str]]:
    """Return the number, the title and the file of each decision."""
    decisions = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        head = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        decisions.append((path.stem.partition("-")[0], head, path.name))
    return decisions


def page() -> str:
    """Return the list of decisions."""
    rows = [(number, f"[{title}]({name})") for number, title, name in titles()]
    intro = (
        "One page for each choice that was argued about: its context, its reasons, and what would "
        "change our mind."
    )
    return f"# Decisions\n\n{intro}\n\n{table(('number', 'decision'), rows)}\n"
