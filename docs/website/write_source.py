"""Write the source of the site: Markdown pages, pictures, styles, and mkdocs.yml.

    PYTHONPATH=docs python -m website.write_source build/docs build/docs/node_modules

MkDocs needs only the written folder, and no plugin or hook of optgen. So another generator can
replace MkDocs.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from website import generated_pages, modifier_page
from website.entries import ROOT, entries
from website.included_sections import for_site
from website.markdown_sections import PAGES, relink, site_path
from website.navigation import navigation
from website.optimizer_links import LINKED_PAGES, with_links

HERE = Path(__file__).parent
DOCS = ROOT / "docs"
_NARROW_COLUMNS = 8  # a table of more columns is wide
_SEARCH_WEIGHTS = {"tutorials": 3, "optimizers": 2, "modifiers": 1.5, "decisions": 0.3}
"""Weights of folders in the search. Other folders have 1."""
_PAGE_WEIGHTS = {"train.md": 3, "choose.md": 3}
_SEARCH_WORDS = {
    "modifiers/accumulate.md": "gradient accumulation",
    "modifiers/clip_norm.md": "gradient clipping",
    "modifiers/decoupled_decay.md": "weight decay",
    "modifiers/ema.md": "exponential moving average of weights",
    "modifiers/master.md": "master weights",
    "modifiers/quantized.md": "8-bit states",
    "modifiers/schedule_free.md": "schedule-free",
    "modifiers/skip_nonfinite.md": "skip infinite gradients",
    "tutorials/low-precision.md": "mixed precision, bfloat16",
    "sam.md": "sharpness-aware minimization",
    "schedulers.md": "learning-rate schedule, warmup, cosine",
    "distributed.md": "FSDP, DDP, checkpoint",
}
"""Words for which the search shows a page first, beside the name of each optimizer."""


def write(target: Path, modules: Path) -> int:
    """Write mkdocs.yml and the folder `source`; return the number of pages.

    Args:
        target: the folder to write into. Its folder `source` is removed first.
        modules: the folder `node_modules` with KaTeX, for its style sheet and its fonts.
    """
    shutil.rmtree(target / "source", ignore_errors=True)
    count = 0
    for path, text in (*pages_of_docs(), *generated_pages.pages()):
        file = target / "source" / path
        if file.exists():
            raise ValueError(f"two pages are called {path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{_front_matter(path, text)}{text}", encoding="utf-8")
        count += 1
    for path, source in _files(modules):
        (target / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / "source" / path)
    settings = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    nav = f"nav: {json.dumps(navigation())}\n"  # JSON is YAML
    (target / "mkdocs.yml").write_text(settings + nav, encoding="utf-8")
    return count


def _front_matter(path: str, text: str) -> str:
    """Return the front matter of a page: its weight and its words in the search, if it has any."""
    if text.startswith("---"):
        return ""
    weight = _PAGE_WEIGHTS.get(path) or _SEARCH_WEIGHTS.get(path.partition("/")[0])
    lines = [f"search: {{ boost: {weight} }}"] if weight else []
    if words := _search_words().get(path):
        lines.append(f"tags: {json.dumps([words])}")
    if _has_wide_table(text):
        lines.append("hide: [toc]")
    return "\n".join(["---", *lines, "---", "", ""]) if lines else ""


@functools.cache
def _search_words() -> dict[str, str]:
    return {each.page: each.title for each in entries()} | _SEARCH_WORDS


def _has_wide_table(text: str) -> bool:
    """Tell whether a table needs the room of the table of contents."""
    rows = (line for line in text.splitlines() if line.startswith("|"))
    return max((row.count("|") - row.count(r"\|") for row in rows), default=0) > _NARROW_COLUMNS


def pages_of_docs() -> Iterator[tuple[str, str]]:
    """Yield the pages of docs/ with their generated sections."""
    for file in sorted(DOCS.glob("**/*.md")):
        source = str(file.relative_to(ROOT))
        if source in PAGES:
            continue
        page = site_path(source)
        text = relink(for_site(file.read_text(encoding="utf-8")), source, page)
        if page in LINKED_PAGES:
            text = with_links(text, page)
        if (modifier_page.FOLDER / f"{file.stem}.py").exists() and page.startswith("modifiers/"):
            text += modifier_page.sections(file.stem)
        yield page, text


def _files(modules: Path) -> Iterator[tuple[str, Path]]:
    """Yield the path in the site and the source of pictures, linked files and styles."""
    for file in sorted(DOCS.rglob("*")):
        if file.is_file() and file.suffix != ".md" and HERE not in file.parents:
            yield str(file.relative_to(DOCS)), file
    for path in generated_pages.repository_files():
        if path not in generated_pages.linked_pages():
            yield site_path(path), ROOT / path
    katex = modules / "katex" / "dist"
    yield "assets/katex/katex.min.css", katex / "katex.min.css"
    for font in sorted((katex / "fonts").glob("*.woff2")):
        yield f"assets/katex/fonts/{font.name}", font
    for name in ("style.css", "search.js"):
        yield f"assets/{name}", HERE / name


if __name__ == "__main__":
    count = write(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{count} pages: {sys.argv[1]}")
