"""Finish a built site: render its formulas, label the cells of its tables, then check its links.

PYTHONPATH=docs python -m website.finish_site build/docs/site build/docs/node_modules
"""

from __future__ import annotations

import sys
from pathlib import Path

from website.formulas import FormulaError, Renderer
from website.links import check_links
from website.phone_tables import with_labels


def render(site: Path, modules: Path) -> tuple[int, list[str]]:
    """Render the formulas and label the tables of all pages.

    Returns:
        The number of formulas, and a line for each failure.
    """
    renderer, problems = Renderer(modules), []
    try:
        for path in sorted(site.rglob("*.html")):
            text = path.read_text(encoding="utf-8")
            try:
                path.write_text(with_labels(renderer.render_page(text)), encoding="utf-8")
            except FormulaError as error:
                problems.append(f"{path.relative_to(site)}: {error}")
    finally:
        renderer.close()
    return renderer.count, problems


def main(site: Path, modules: Path) -> int:
    """Finish a site; return the exit code."""
    formulas, problems = render(site, modules)
    report = check_links(site)
    problems += report.problems
    for problem in problems:
        print(problem, file=sys.stderr)
    print(
        f"{report.pages} pages, {formulas} formulas, {report.internal} links in the site checked, "
        f"{report.external} links to other hosts not followed, {len(problems)} problems: {site}"
    )
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
