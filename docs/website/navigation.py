"""Lay out the navigation: to train first, then to invent a rule, then pages for reference.

A page has no title here: its heading is its name in the navigation, too.
"""

from __future__ import annotations

from typing import Any

from website.api_pages import references
from website.decisions import titles
from website.entries import ROOT
from website.generated_pages import linked_pages
from website.groups import grouped
from website.markdown_sections import site_path


def navigation() -> list[Any]:
    """Return the navigation of the site, as mkdocs takes it."""
    return [
        {"Home": "index.md"},
        {"Train": _train()},
        {"Optimizers": _optimizers()},
        {"Modifiers": _modifiers()},
        {"Invent": _invent()},
        {"Maintain": _maintain()},
        {"Reference": _reference()},
        {"Benchmarks": _benchmarks()},
    ]


def _train() -> list[Any]:
    return [
        "train.md",
        "choose.md",
        {"Learning-rate schedulers": ["schedulers.md", "schedule-gallery.md"]},
        "sam.md",
        "tutorials/low-precision.md",
        "tutorials/many-machines.md",
        "distributed.md",
        "frameworks.md",
        "configuration-files.md",
        {"Offloaded optimizers": ["offload.md", "offload-frameworks.md"]},
        "update-in-backward.md",
        "views.md",
        "keyed.md",
        "differences.md",
        "what-runs-where.md",
    ]


def _optimizers() -> list[Any]:
    groups = [{group.title: [each.page for each in members]} for group, members in grouped()]
    return ["optimizers/index.md", *groups, "catalogue.md", "names-elsewhere.md", "evidence.md"]


def _modifiers() -> list[Any]:
    files = sorted((ROOT / "docs" / "modifiers").glob("[a-z]*.md"))
    return ["modifiers/README.md", *(f"modifiers/{each.name}" for each in files)]


def _invent() -> list[Any]:
    return [
        "tutorials/write-your-own.md",
        "tutorials/compose.md",
        "compose.md",
        "bring-your-own.md",
        "spec-language.md",
        "not-yet.md",
        "versioning.md",
    ]


def _maintain() -> list[Any]:
    return [
        "contributing.md",
        "architecture.md",
        "tutorials/add-a-lowering.md",
        "glossary.md",
        {"Decisions": ["decisions/index.md", *(f"decisions/{file}" for _, _, file in titles())]},
        "changelog.md",
        "security.md",
        "contents.md",
    ]


def _reference() -> list[Any]:
    return [*(each.page for each in references()), "api/commands.md"]


def _benchmarks() -> list[Any]:
    return [
        "benchmarks/index.md",
        "benchmarks/cpu.md",
        "benchmarks/triton-registers.md",
        "benchmarks/triton-speed.md",
        *(site_path(path) for path in linked_pages()),
    ]
