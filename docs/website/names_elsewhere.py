"""Write the tables of the page "Names elsewhere" from `docs/names_elsewhere.json`.

The file has, for each library, its version and its names. A name has an expression of what it is
here, such as "adopt(decouple=True) + cautious", or "" if it is not here, and a note.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
DATA = DOCS / "names_elsewhere.json"
PAGE = DOCS / "names-elsewhere.md"

Names = dict[str, tuple[str, str]]
"""An expression and a note for each name of a library."""


def libraries() -> dict[str, tuple[str, Names]]:
    """Return the version and the names of each library."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return {
        title: (
            each["version"],
            {name: (here, note) for name, (here, note) in each["names"].items()},
        )
        for title, each in data.items()
    }


def table(names: Names) -> str:
    """Return the table of a library's names. Names of one verdict share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, verdict in names.items():
        rows.setdefault(verdict, []).append(name)
    lines = ["| there | here | what differs |", "| --- | --- | --- |"]
    for (here, note), together in rows.items():
        theirs = ", ".join(f"`{name}`" for name in together)
        lines.append(f"| {theirs} | {f'`{here}`' if here else 'not here'} | {note} |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """Return the page with the table of each library between its two marks."""
    for title, (version, names) in libraries().items():
        start = f"<!-- names of {title} {version} -->"
        mark = re.compile(rf"<!-- names of {title} .*?<!-- end -->", re.DOTALL)
        text = f"{start}\n\n{table(names)}\n\n<!-- end -->"
        parts = mark.split(page)
        if len(parts) != 2:
            raise ValueError(
                f"{PAGE.name} has {len(parts) - 1} tables of {title}, and should have one"
            )
        page = text.join(parts)
    return page


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
