"""Test how Markdown is moved from the repository to pages of the site."""

from __future__ import annotations

import pytest

from website.entries import ROOT
from website.included_sections import for_site, with_sections
from website.markdown_sections import linked_files, relink, section
from website.optimizer_links import with_links


@pytest.mark.parametrize(
    ("link", "source", "page", "expected"),
    [
        ("docs/views.md", "README.md", "index.md", "views.md"),
        ("docs/views.md#dtensors", "README.md", "a/b.md", "../views.md#dtensors"),
        ("../README.md#install", "docs/distributed.md", "distributed.md", "index.md#install"),
        ("../CONTRIBUTING.md", "docs/README.md", "contents.md", "contributing.md"),
        ("decisions/", "docs/README.md", "contents.md", "decisions/index.md"),
        ("benchmarks/results/cpu.json", "README.md", "index.md",
         "repository/benchmarks/results/cpu.json"),
        ("https://example.org/docs/a.md", "README.md", "index.md", "https://example.org/docs/a.md"),
        ("#why", "README.md", "index.md", "#why"),
    ],
)  # fmt: skip
def test_a_link_leads_to_its_page_on_the_site(
    link: str, source: str, page: str, expected: str
) -> None:
    assert relink(f"[a]({link})", source, page) == f"[a]({expected})"


def test_linked_files_are_found() -> None:
    text = "[figures](benchmarks/results/cpu.json) [views](docs/views.md)"

    assert linked_files(text, "README.md") == {"benchmarks/results/cpu.json"}


def test_names_of_optimizers_become_links() -> None:
    code = "\n```python\n`SOAP`\n```"
    text = with_links(f"`SOAP`, `sgd` [`Lion`](https://a) `lr`{code}", "a/b.md")

    soap, sgd = "[`SOAP`](../optimizers/soap.md)", "[`sgd`](../optimizers/sgd.md)"
    assert text == f"{soap}, {sgd} [`Lion`](https://a) `lr`{code}"


def test_a_section_is_found_by_its_title() -> None:
    install = section(ROOT / "README.md", "Install", "index.md")

    assert install.startswith("optgen is in no package index.")
    assert "## First steps" not in install
    assert section(ROOT / "README.md", "", "index.md").startswith(
        "**Write the rule of an optimizer once"
    )
    assert install in with_sections("<!-- section: README.md#Install -->", "index.md")
    with pytest.raises(ValueError, match=r"README.md has no section 'Nothing'"):
        section(ROOT / "README.md", "Nothing", "index.md")


def test_text_for_readers_of_the_repository_is_left_out() -> None:
    text = "a <!-- outside the site -->b <!-- end -->c\n<!-- by x -->\nd\n<!-- end -->\n"

    assert for_site(text) == "a c\n<!-- by x -->\nd\n<!-- end -->\n"
