"""Test what the documentation says: links, code blocks, tables."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch
from spec_files import TORCH_SPECS, spec_file
from typer.testing import CliRunner

import optgen
from optgen import __version__, emit
from optgen.bench.results import Cell, load
from optgen.bench.variants import DEFAULT, LIMIT, OURS
from optgen.cli.app import app
from optgen.ir.ops import CALLABLE_OPS
from optgen.lowerings.forloop import FORLOOP
from optgen.optim._published import PUBLISHED
from optgen.runtime.toolchain import compiler
from optgen.spec import Spec, signature
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec, read_specs

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page for where in ("*", "docs/**/*", "examples/**/*") for page in ROOT.glob(f"{where}.md")
)
LANGUAGE = (ROOT / "docs" / "spec-language.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_has_no_broken_link_code_or_placeholder(page: Path) -> None:
    """Every link leads to a file, every Python block is Python, and no placeholder is left."""
    text = page.read_text(encoding="utf-8")

    assert "@@" not in text
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for block in blocks(text, "python"):
        ast.parse(block)


def example() -> Spec:
    """Return the complete spec that the language page shows."""
    (source,) = (b for b in blocks(LANGUAGE, "python") if "@optimizer" in b)
    return Spec("Example", source, "example.py", 1)


def test_the_example_of_the_language_page_is_a_spec() -> None:
    (algorithm,) = read_spec(example())

    assert algorithm.name == "Example"


def test_the_language_page_quotes_an_error_of_optgen() -> None:
    spec = example()
    wrong = spec.source.replace("(1 - beta1) * g", "(1 - beta) * g")

    with pytest.raises(SpecError) as caught:
        read_spec(Spec(spec.name, wrong, spec.file, spec.line))
    assert f"{caught.value}\n" in blocks(LANGUAGE, "text")


@pytest.mark.thorough
def test_the_commands_of_the_language_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands run in the page's order, and the built package imports as the page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "example.py").write_text(example().source)
    commands = [
        shlex.split(line, comments=True)[1:]
        for block in blocks(LANGUAGE, "sh")
        for line in block.splitlines()
    ]

    assert len(commands) > 4
    for command in commands:
        result = CliRunner().invoke(app, command, prog_name="optgen")
        assert result.exit_code == 0, result.output
    assert "`from my_package.example import Example`" in LANGUAGE
    assert importlib.import_module("my_package.example").Example.__name__ == "Example"


def test_the_example_is_rewritten_as_the_language_page_promises() -> None:
    """A decay becomes one scaling, and a running mean becomes a lerp."""
    (algorithm,) = read_spec(example())
    text = emit.render(algorithm, FORLOOP, None)

    assert "param.mul_(" in text
    assert "exp_avg.lerp_(grad, " in text


def test_the_language_page_quotes_the_warning_without_a_compiler() -> None:
    quoted = compiler.INSTALL.partition(" or ")[0]  # the page leaves the rest out

    assert f"no C++ compiler was found: {quoted} …" in LANGUAGE


def test_the_language_page_has_every_op_and_option() -> None:
    options = (*signature._STATE_OPTIONS, *signature._HYPER_OPTIONS, "keywords", "group", "base")

    assert [w for w in CALLABLE_OPS if f"`{w}(" not in LANGUAGE] == []
    assert [o for o in options if f"{o}=" not in LANGUAGE] == []


def test_the_readme_names_every_algorithm() -> None:
    """The README's table has torch's classes and torchrec's, with the keys of their state."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", README, re.MULTILINE))

    for algorithm in (each for each in read_specs(TORCH_SPECS) if not each.is_function):
        keys = [state.key for state in algorithm.states]
        assert re.findall(r"`(\w+)`", rows[algorithm.name]) == keys


def test_the_catalogue_page_has_every_published_optimizer() -> None:
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \[`(\w+)`\]\((.*?)\) \|", page, re.MULTILINE)

    algorithms = read_specs(map(spec_file, PUBLISHED))
    assert rows == [(each.module, each.name, each.paper) for each in algorithms]


def line_counts() -> dict[str, int]:
    """Return how many lines each function in `specs/` has besides blank lines and its docstring."""
    counts = {}
    for file in sorted((ROOT / "specs").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for rule in ast.parse(text).body:
            if isinstance(rule, ast.FunctionDef):
                body = rule.body[ast.get_docstring(rule) is not None :]
                lines = text.splitlines()[body[0].lineno - 1 : body[-1].end_lineno] if body else []
                counts[f"{file.stem}.{rule.name}"] = sum(bool(line.strip()) for line in lines)
    return counts


@pytest.mark.parametrize("page", ["README.md", "docs/catalogue.md"])
def test_the_pages_say_how_many_lines_the_longest_rule_has(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.findall(r"at most (\S+) lines", text) == [str(max(line_counts().values()))]


def test_the_rule_of_the_readme_is_adamw() -> None:
    """It has twelve lines, and takes the steps of torch's class."""
    source, *_ = blocks(README, "python")
    assert len([line for line in source.splitlines() if line.strip()]) == 12
    ours, theirs = (torch.linspace(-1, 1, 7, dtype=torch.float64).requires_grad_() for _ in "ab")
    optimizer = optgen.load(Spec("AdamW", source, "README.md", 1))([ours], lr=1e-2)
    reference = torch.optim.AdamW([theirs], lr=1e-2)
    with optgen.use_lowering("forloop"):
        for _ in range(5):
            for param, each in ((ours, optimizer), (theirs, reference)):
                param.grad = param.detach().sin() + 0.5
                each.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_the_first_figures_of_the_readme_are_those_of_the_results() -> None:
    results = load(ROOT / "benchmarks" / "results" / "cpu.json")
    rows = re.findall(r"^\| (\w+) \| (\S+) ms \| (\S+) ms \| (\S+) ms \|$", README, re.MULTILINE)

    assert len(rows) == 4
    for name, *shown in rows:
        figures = results[Cell("step", name, "resnet50", "float32", 1)]
        ours, default = figures[OURS]["median"], figures[DEFAULT]["median"]
        fastest = min(value["median"] for key, value in figures.items() if key not in (OURS, LIMIT))
        assert shown == [f"{each:.3g}" for each in (ours, fastest, default)]


def test_the_readme_installs_the_wheel_of_this_version() -> None:
    wheels = set(re.findall(r"dist/optgen-[\w.]+-py3-none-any.whl", README))

    assert wheels == {f"dist/optgen-{__version__}-py3-none-any.whl"}


def test_the_architecture_names_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [
        p.parent for p in (ROOT / "optgen").rglob("__init__.py") if p.parent.name != "optgen"
    ]

    assert [
        f.name for f in folders if f"`{f.name}/`" not in page and f"/{f.name}/`" not in page
    ] == []
