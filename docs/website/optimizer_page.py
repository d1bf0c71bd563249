"""Write the page of an optimizer, and the page that lists all of them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from optgen.lowerings import LOWERINGS
from optgen.passes.plan_rule import why_uncut
from website import (
    adoption,
    cautions,
    code_section,
    lowerings_section,
    rule_section,
    speed_section,
    state_section,
    support_section,
)
from website.docstrings import markdown, table_cell
from website.entries import Entry, entries
from website.evidence import evidence, hint, recorded_comparisons
from website.groups import grouped
from website.precisions import refusal
from website.state_bytes import TALL, element_bytes_text, total_size
from website.tables import table

_EXAMPLE_MODIFIERS = ("clip_norm", "ema")
"""Modifiers for the example of a composition, which takes the first that fits the optimizer."""
_ABOUT_FORMULAS = (
    "The formulas are those of the spec, in the author's order. The table of arguments explains "
    "the letters."
)


def page(entry: Entry) -> str:
    """Return the page of an optimizer."""
    sections = [f"# {entry.title}", *_head(entry)]
    for title, text in _sections(entry):
        if text:
            sections += [f"## {title}", text]
    return "\n\n".join(sections) + "\n"


def _head(entry: Entry) -> Iterator[str]:
    yield markdown(entry.summary)
    paper = entry.algorithm.paper
    if paper:
        shown = f"`{entry.package}.{entry.title}` · `optgen show {entry.name}`"
        yield f"[Paper]({_url(paper)}) · {shown}"
    if entry.remarks:
        yield markdown(entry.remarks)
    if usage := hint(entry):
        yield f'!!! tip "To use it"\n\n    {usage}'


def _url(paper: str) -> str:
    """Return the URL of a paper. No bracket in it ends a link of Markdown."""
    scheme, _, rest = paper.partition(":")
    site = {"doi": "https://doi.org/", "arxiv": "https://arxiv.org/abs/"}.get(scheme.lower())
    return quote(site + rest if site else paper, safe="/:?#@!$&'*+,;=%~")


def _sections(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "Turn it on", _adoption(entry)
    yield "Verify it", _verification(entry)
    yield "The rule", f"{_ABOUT_FORMULAS}\n\n{rule_section.rule(entry)}"
    yield "Arguments", rule_section.arguments(entry)
    yield "State", state_section.states(entry)
    yield "Memory", state_section.memory(entry)
    yield "Lowerings and devices", lowerings_section.lowerings(entry)
    yield "Dtypes", lowerings_section.dtypes(entry)
    yield "Sharding, checkpoints, AMP, offloading", support_section.support(entry)
    yield "Evidence", evidence(entry)
    yield "Measured", speed_section.speed(entry)
    yield "Add to it", _composition(entry)
    yield "Spec and generated code", code_section.code(entry)


def _adoption(entry: Entry) -> str:
    notes = adoption.notes(entry.algorithm, adoption.needs_of(entry))
    script = code_section.code_block(adoption.script(entry), ".py")
    return "\n\n".join(
        [
            f"[Install optgen](../index.md#install), and write this for `{adoption.old(entry)}`:",
            code_section.code_block(adoption.adopted(entry), ".py"),
            *notes,
            *cautions.cautions(entry),
            f"This script runs as it stands. {_build_note(entry)}Its last line says which code "
            "took the steps:",
            script,
        ]
    )


def _build_note(entry: Entry) -> str:
    """Return why the first step takes long; "" if the rule has no C++ kernel."""
    (lowering,) = (each for each in LOWERINGS if each.name == "fused_cpu")
    if lowering.refusal(entry.algorithm) and not why_uncut(entry.algorithm):
        return ""
    return "On a CPU, its first step compiles the C++ kernel once, in some seconds, and keeps it. "


def _verification(entry: Entry) -> str:
    """Return the command that verifies a rule; "" if no evidence is recorded."""
    if not any(each["name"] == entry.name for each in recorded_comparisons()):
        return ""
    return (
        f"```sh\noptgen verify {entry.name}\n```\n\nThe command takes steps in every lowering, and "
        "compares them with the reference that [Evidence](#evidence) names. It needs the extra "
        "`build` ([install](../index.md#install))."
    )


def _composition(entry: Entry) -> str:
    """Return an example of a composition; "" if neither modifier goes with the optimizer."""
    added = next((each for each in _EXAMPLE_MODIFIERS if not refusal(entry, each)), "")
    if not added:
        return ""
    imports = '```python\nimport optgen\nfrom optgen import modifiers\n\nMine = optgen.compose("'
    return (
        "[Modifiers](../modifiers/README.md) add clipping, decays, averages and precision:\n\n"
        f'{imports}{entry.name}", modifiers.{added})\n```\n\n'
        "If they do not go together, `compose` raises an error that says why."
    )


def index() -> str:
    """Return the page that lists all optimizers, in groups."""
    parts = [
        "# Optimizers",
        f"optgen has {len(entries())} optimizers with a rule, and torch's "
        "[LBFGS](../api/optim.md#lbfgs), which is written by hand. "
        "If you do not know which one you want, [choose one](../choose.md).",
        "The column of bytes counts the state of a matrix of 4096 × 1024 in float32, for each "
        "element. AdamW has 8.",
    ]
    for group, members in grouped():
        rows = [_row(each) for each in members]
        parts += [f"## {group.title}", group.text, table(("optimizer", "rule", "bytes"), rows)]
    return "\n\n".join(parts) + "\n"


def _row(entry: Entry) -> tuple[str, str, str]:
    rank = entry.algorithm.hyper("rank")
    size = total_size(entry.algorithm, TALL, "float32")
    number = rank.default if rank and isinstance(rank.default, int | float) else 0
    bytes_ = size.at(4096, 1024, int(number)) / (4096 * 1024)
    name = f"[{entry.title}]({entry.name}.md)"
    return (name, table_cell(markdown(entry.summary)), element_bytes_text(bytes_))
