"""Test the generated pages; the site itself is not built."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from optgen.optim._published import PUBLISHED
from optgen.runtime.fused_cpu import backend
from website import gallery, optimizer_page
from website.entries import entries
from website.evidence import FILES
from website.generated_pages import pages
from website.groups import group, grouped
from website.navigation import navigation
from website.write_source import pages_of_docs


@pytest.fixture(scope="module")
def site() -> Iterator[dict[str, str]]:
    """Yield all pages by their paths.

    No kernels are built: `explain` would build them, and a page has the same text without.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "kernel_or_reason", lambda *_, **__: None)
        yield dict((*pages_of_docs(), *pages()))


def headings(text: str) -> list[str]:
    without_code = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^## (.*)", without_code, re.MULTILINE)


def test_every_optimizer_has_a_page(site: dict[str, str]) -> None:
    assert {each.name for each in entries()} >= {*PUBLISHED, "adamw", "sgd", "row_wise_adagrad"}
    for each in entries():
        titles = headings(site[each.page])

        assert titles[0] == "Turn it on"
        for title in ("The rule", "Arguments", "State", "Memory", "Lowerings and devices"):
            assert title in titles, each.page
        assert '=== "Spec"' in site[each.page]
        assert '=== "For-loop"' in site[each.page]


def test_the_front_page_leads_to_every_group(site: dict[str, str]) -> None:
    for each, members in grouped():
        assert f"* **{each.title}**: [{members[0].title}]({members[0].page})" in site["index.md"]
        assert f"## {each.title}\n" in site["optimizers/index.md"]
        if len(members) > 6:
            assert f"(optimizers/index.md#{each.anchor})" in site["index.md"]


def test_every_optimizer_is_in_one_group() -> None:
    titles = {each.name: group(each).title for each in entries()}

    assert sorted(e.name for _, members in grouped() for e in members) == sorted(titles)
    assert titles["adamw"] == "Adam and its like"
    assert titles["sgd"] == "SGD, for convolutions"
    assert titles["lion"] == "Sign"
    assert titles["muon"] == "Orthogonal steps"
    assert titles["adafactor"] == titles["adamw_8bit"] == titles["galore"] == "Low memory"
    assert titles["soap"] == titles["sophia"] == "Second order"
    assert titles["prodigy"] == "Learning-rate-free"
    assert titles["schedule_free_sgd"] == "Schedule-free"
    assert titles["lamb"] == "Large batches"
    assert titles["row_wise_adagrad"] == "For embeddings"


def test_a_page_has_one_name(site: dict[str, str]) -> None:
    """The navigation gives no page a name, and names a section as its first page is called."""
    names = list(named_pages(navigation()))

    assert names == [("Home", "index.md")]
    for title, page in sections(navigation()):
        if page.endswith(("index.md", "README.md")) or title in ("Offloaded optimizers",):
            assert site[page].partition("\n# ")[2].startswith(title) or site[page].startswith(
                f"# {title}\n"
            )
    heads = Counter(re.findall(r"^# (.*)", text, re.MULTILINE)[0] for text in site.values())
    assert {head: count for head, count in heads.items() if count > 1} == {"optgen": 2}


def named_pages(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield the pages to which a navigation gives a name of their own."""
    for each in nav:
        for title, value in each.items() if isinstance(each, dict) else ():
            if isinstance(value, str):
                yield title, value
            else:
                yield from named_pages(value)


def sections(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield the sections of a navigation with their first pages."""
    for each in nav:
        for title, value in each.items() if isinstance(each, dict) else ():
            if isinstance(value, list):
                if isinstance(value[0], str):
                    yield title, value[0]
                yield from sections(value)


def test_formulas_have_the_names_of_arguments(site: dict[str, str]) -> None:
    page = site["optimizers/soap.md"]

    assert r"k_t \bmod \texttt{precondition\_frequency} = 0" in page
    assert r"\textbf{if } \texttt{maximize}" in page
    assert r"\text{precondition frequency}" not in page.partition("## Arguments")[0]
    assert r"\gamma" in page


def test_the_page_of_soap_shows_its_facts(site: dict[str, str]) -> None:
    page = site["optimizers/soap.md"]

    assert "\noptimizer = optgen.optim.SOAP(model.parameters(), lr=3e-3)\n" in page
    assert r"\operatorname{eigenvectors}(L_t)" in page
    assert r"8\,m^2 + 8\,mn + 8\,n^2 + 4" in page
    cells = "in Triton's interpreter: matrices by torch | elementwise parts emulated, not run"
    assert f"| fused Triton | {cells} |" in page
    assert "nikhilvyas/SOAP" in page
    assert '=== "C++"' in page
    assert '=== "Triton"' not in page
    assert "Nothing of optgen has run on a GPU" in page


def test_pages_warn_of_square_states_and_show_views(site: dict[str, str]) -> None:
    warning = '!!! warning "Memory grows with the square"'
    warned = {each.name for each in entries() if warning in site[each.page]}
    soap, kl_soap, one_sided = (
        site[f"optimizers/{name}.md"] for name in ("soap", "kl_soap", "one_sided_shampoo")
    )

    assert warned == {
        *("aro", "conda", "kl_soap", "kron", "one_sided_shampoo", "pion", "shampoo", "soap"),
        "splus",
    }
    assert "20 GB for an embedding of 50,257 rows" in kl_soap
    assert "0.8 GB for a side of 10,000. A side above `max_precond_dim`, 10,000" in soap
    assert "20 GB for a matrix of 50,257 columns" in one_sided
    assert "Eigenvectors of the eigenvalue 0 are arbitrary" in soap
    for name in ("soap", "adafactor", "one_sided_shampoo"):
        assert (
            "is 12 matrices of 3 × 3. With the [view](../views.md)" in site[f"optimizers/{name}.md"]
        )
    assert "12 matrices" not in site["optimizers/muon.md"]
    assert "12 matrices" not in site["optimizers/adamw.md"]


def test_the_memory_of_8_bit_states_is_compared_with_the_base(site: dict[str, str]) -> None:
    page = site["optimizers/adamw_8bit.md"]

    assert "| [AdamW](adamw.md), float32 | 8 |\n| AdamW8bit, float32 | 2.03 |" in page
    assert "take 800 MB with AdamW, and 203 MB with AdamW8bit" in page
    assert "`quantized()`" not in page


def test_the_choose_page_states_the_bytes_of_the_index(site: dict[str, str]) -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\(\w+\.md\) .* \| (\S+) \|$", site["optimizers/index.md"], re.M
    )
    bytes_of = dict(rows)
    _, _, less_memory = site["choose.md"].partition("| less memory for states |")
    lines = less_memory.partition("| fine-tuning")[0].splitlines()

    assert len(lines) == 5
    for line in lines:
        *_, names, bytes_cell, _ = line.split("|")
        stated = re.findall(r"[\d.]+", bytes_cell.partition(" bytes")[0])
        titles = re.findall(r"`(\w+)`", names)
        assert stated == list(dict.fromkeys(bytes_of[each] for each in titles))


def test_pages_leave_out_text_for_readers_of_the_repository(site: dict[str, str]) -> None:
    for path in ("choose.md", "contents.md", "tutorials/low-precision.md"):
        assert "`make docs` builds" not in site[path]
        assert "outside the site" not in site[path]


def test_a_description_does_not_repeat_the_name(site: dict[str, str]) -> None:
    assert "| `weight_decay` | `float` | `1e-2` | At least 0; " in site["optimizers/soap.md"]
    assert "| `params` |  |  | Parameters to optimize" in site["optimizers/soap.md"]
    assert "| `ema_decay` | `float` | `0.999` | In [0, 1]; " in site["modifiers/ema.md"]


def test_a_state_that_a_first_step_sets_does_not_begin_with_0(site: dict[str, str]) -> None:
    assert ", set by its first step" in site["modifiers/ema.md"]
    assert "like the parameter, set by its first step" in site["optimizers/sgd.md"]
    assert "like the parameter, at first 0" in site["optimizers/adamw.md"]


def test_evidence_says_who_wrote_the_reference(site: dict[str, str]) -> None:
    assert "made from: [nikhilvyas/SOAP]" in site["optimizers/soap.md"]
    assert "independent rule" not in site["optimizers/soap.md"]
    assert "where both sides iterate in bfloat16" in site["optimizers/muon.md"]
    assert "wider than" not in site["optimizers/adamw.md"]


def test_a_page_proposes_only_modifiers_that_its_optimizer_takes(site: dict[str, str]) -> None:
    shown = {each.name: re.findall(r"modifiers\.(\w+)\)", site[each.page]) for each in entries()}

    assert shown["soap"] == ["clip_norm"]
    assert shown["scion"] == ["clip_norm"]
    assert shown["sparse_adam"] == []


def test_pages_show_evidence_if_it_is_recorded(site: dict[str, str]) -> None:
    verified = [each.page for each in entries() if "Verify it" in headings(site[each.page])]

    assert bool(verified) is bool(FILES)


def test_every_modifier_has_formulas_and_code(site: dict[str, str]) -> None:
    modifier_pages = [
        path for path in site if path.startswith("modifiers/") and "README" not in path
    ]

    assert len(modifier_pages) > 30
    for path in modifier_pages:
        if path != "modifiers/quantized.md":  # a modifier without a rule
            assert "## Turn it on" in site[path]
            assert "\\begin{aligned}" in site[path]
            assert '=== "C++"' in site[path]


def test_the_navigation_has_every_page(site: dict[str, str]) -> None:
    assert sorted(pages_in(navigation())) == sorted(site)


def pages_in(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation."""
    match nav:
        case str():
            yield nav
        case list():
            for each in nav:
                yield from pages_in(each)
        case dict():
            for each in nav.values():
                yield from pages_in(each)


def test_rows_of_tables_have_equally_many_cells(site: dict[str, str]) -> None:
    """A bar in a cell must be escaped."""
    for path, text in site.items():
        widths: list[int] = []
        for line in text.splitlines():
            if not line.startswith("|"):
                widths = []
                continue
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
            assert widths[-1] == widths[0], f"{path}: {line}"


def test_the_gallery_draws_what_the_schedules_set() -> None:
    curve = gallery.svg([0.0, 1.0], "two steps")

    assert 'points="8.0,112.0 160.0,112.0 160.0,8.0 312.0,8.0"' in curve
    text = gallery.page()
    assert text.count("<svg") == len(gallery.code_by_schedule()) >= 18
    assert "lr.StepLR(o, step_size=25, gamma=0.5)" in text


def test_benchmarks_name_machine_and_command(site: dict[str, str]) -> None:
    for path in ("benchmarks/index.md", "benchmarks/cpu.md", "optimizers/adamw.md"):
        assert "AMD EPYC" in site[path]
        assert "`python benchmarks/cpu.py`" in site[path]
    assert "optgen bench soap" in site["optimizers/soap.md"]
    assert "triton_aot.py" in site["benchmarks/triton-registers.md"]
    assert "no kernel has run on a card" in site["benchmarks/triton-speed.md"]
    assert "`adafactor adafactor_factored_step2 bfloat16`" in site["benchmarks/triton-speed.md"]


def test_the_api_reference_has_signatures(site: dict[str, str]) -> None:
    assert "optgen.compose(" in site["api/optgen.md"]
    assert "## WarmupStableDecayLR" in site["api/schedulers.md"]
    assert "| `warmup_steps` | `int` |" in site["api/schedulers.md"]
    assert "## bench" in site["api/commands.md"]
    assert "0x" not in site["api/optim.md"]  # no addresses of objects
    assert headings(site["api/optim.md"])[0] == "create_optimizer"
    assert "SAM" in headings(site["api/optim.md"])


@pytest.mark.parametrize(
    ("paper", "url"),
    [
        ("https://arxiv.org/abs/1412.6980", "https://arxiv.org/abs/1412.6980"),
        ("https://openreview.net/forum?id=OM0jvwB", "https://openreview.net/forum?id=OM0jvwB"),
        ("doi:10.1016/0041-5553(64)90137-5", "https://doi.org/10.1016/0041-5553%2864%2990137-5"),
        ("arXiv:1412.6980", "https://arxiv.org/abs/1412.6980"),
    ],
)
def test_a_paper_is_a_link(paper: str, url: str) -> None:
    assert optimizer_page._url(paper) == url
