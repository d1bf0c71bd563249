"""Lay out the navigation: pages for newcomers first, then pages for reference."""

from __future__ import annotations

from typing import Any

from website.api_pages import references
from website.decisions import titles
from website.entries import ROOT, entries
from website.generated_pages import linked_pages
from website.markdown_sections import site_path
from website.optimizer_page import GROUPS, group

TUTORIALS = (
    ("Your own optimizer in five minutes", "tutorials/write-your-own.md"),
    ("Compose an optimizer", "tutorials/compose.md"),
    ("Low precision", "tutorials/low-precision.md"),
    ("Many machines", "tutorials/many-machines.md"),
    ("Add a lowering", "tutorials/add-a-lowering.md"),
)


def navigation() -> list[Any]:
    """Return the navigation of the site, as mkdocs takes it."""
    return [
        {"Home": ["index.md", {"Choose an optimizer": "choose.md"}, {"Every page": "contents.md"}]},
        {"Tutorials": [{title: page} for title, page in TUTORIALS]},
        {"Optimizers": _optimizers()},
        {"Modifiers": _modifiers()},
        {"Guides": _guides()},
        {"Reference": _reference()},
        {"Benchmarks": _benchmarks()},
        {"Project": _project()},
    ]


def _optimizers() -> list[Any]:
    groups = [
        {title: [{each.title: each.page} for each in entries() if group(each) == title]}
        for title, _ in GROUPS
    ]
    evidence_pages = [{"How they were checked": "catalogue.md"}]
    if (ROOT / "docs" / "evidence.md").exists():
        evidence_pages.append({"Evidence": "evidence.md"})
    return ["optimizers/index.md", *evidence_pages, *groups]


def _modifiers() -> list[Any]:
    files = sorted((ROOT / "docs" / "modifiers").glob("[a-z]*.md"))
    return [
        "modifiers/README.md",
        {"Compositions": "compose.md"},
        *({each.stem: f"modifiers/{each.name}"} for each in files),
    ]


def _guides() -> list[Any]:
    return [
        {"Bring your own optimizer": "bring-your-own.md"},
        {"What runs where": "what-runs-where.md"},
        {"Schedulers": ["schedulers.md", {"Gallery": "schedule-gallery.md"}]},
        {"Offloaded optimizers": ["offload.md", {"In frameworks": "offload-frameworks.md"}]},
        {"On many machines": "distributed.md"},
        {"Hugging Face, Lightning, DeepSpeed, torchtitan": "frameworks.md"},
        {"Views: heads, experts, convolutions": "views.md"},
        {"Keyed optimizers": "keyed.md"},
        {"Update in the backward pass": "update-in-backward.md"},
        {"Differences from torch.optim": "differences.md"},
        {"Versions": "versioning.md"},
    ]


def _reference() -> list[Any]:
    return [
        {"The spec language": "spec-language.md"},
        {"What it cannot say yet": "not-yet.md"},
        *({each.title: each.page} for each in references()),
        {"The command optgen": "api/commands.md"},
    ]


def _benchmarks() -> list[Any]:
    return [
        "benchmarks/index.md",
        {"Every class on a CPU": "benchmarks/cpu.md"},
        {"Registers of Triton kernels": "benchmarks/triton-registers.md"},
        {"Predicted speed of Triton kernels": "benchmarks/triton-speed.md"},
        *(site_path(path) for path in linked_pages()),
    ]


def _project() -> list[Any]:
    return [
        {"Architecture": "architecture.md"},
        {"Contributing": "contributing.md"},
        {"Glossary": "glossary.md"},
        {"Changes": "changelog.md"},
        {"Security": "security.md"},
        {"Decisions": ["decisions/index.md", *({t: f"decisions/{f}"} for _, t, f in titles())]},
    ]
