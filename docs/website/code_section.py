"""Show the spec and the generated code of an optimizer in tabs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from website.entries import ROOT, SPECS, Entry

GENERATED = ROOT / "generated"
_TABS = (
    ("For-loop", "forloop.py"),
    ("Foreach", "foreach.py"),
    ("Matrices and sweeps", "outlined.py"),
    ("C++", "fused_cpu.cpp"),
    ("Triton", "fused_triton.py"),
    ("Class", "__init__.py"),
)
_LANGUAGES = {".py": "python", ".cpp": "cpp"}


def code(entry: Entry) -> str:
    """Return the spec and the generated files, one tab for the spec and for each lowering."""
    tabs = [("Spec", [SPECS / f"{entry.name}.py"])]
    if entry.rule_name != entry.name:
        tabs.append((f"Spec of {entry.rule_name}", [SPECS / f"{entry.rule_name}.py"]))
    tabs += [(title, files) for title, name in _TABS if (files := list(_files(entry, name)))]
    return tab_block([(title, "\n\n".join(map(file_block, files))) for title, files in tabs])


def _files(entry: Entry, name: str) -> Iterator[Path]:
    """Yield the files of a lowering: the rule's own, and those of its sweeps and programs."""
    folder = entry.name if name == "__init__.py" else entry.rule_name
    path = GENERATED / folder / name
    if path.exists():
        yield path
    elif name == "fused_triton.py":
        return  # a rule without this file launches no Triton kernels, not even those of its sweeps
    if name not in ("__init__.py", "forloop.py", "foreach.py"):
        yield from sorted((GENERATED / folder).glob(f"*/{name}"), key=_by_number)


def _by_number(path: Path) -> tuple[int, str]:
    """Return a key that sorts sweep2 before sweep10."""
    name = path.parent.name
    return (len(name), name)


def file_block(path: Path) -> str:
    """Return a file as a block of code with its path as the title."""
    return code_block(path.read_text(encoding="utf-8"), path.suffix, str(path.relative_to(ROOT)))


def code_block(text: str, suffix: str, title: str = "") -> str:
    """Return a block of code."""
    head = f'{_LANGUAGES[suffix]} title="{title}"' if title else _LANGUAGES[suffix]
    return f"```{head}\n{text.rstrip()}\n```"


def tab_block(tabs: list[tuple[str, str]]) -> str:
    """Return tabs. The search leaves them out, because generated code would dominate results."""
    blocks = [f'=== "{title}"\n\n{textwrap.indent(text, "    ")}' for title, text in tabs]
    return "\n\n".join(
        ['<section class="generated" data-search-exclude markdown>', *blocks, "</section>"]
    )
