"""Test the built site and its formulas, where the tools for them are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from website.entries import ROOT
from website.finish_site import main
from website.formulas import FormulaError, Renderer
from website.write_source import write

MODULES = Path(os.environ.get("OPTGEN_NODE_MODULES", ROOT / "build" / "docs" / "node_modules"))

needs_katex = pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "katex").is_dir(),
    reason="Node or KaTeX is not installed: make docs installs KaTeX",
)
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed: make docs installs it",
)


@needs_katex
def test_formulas_are_rendered() -> None:
    renderer = Renderer(MODULES)
    try:
        page = renderer.render_page(r'<p>a <span class="arithmatex">\(x &lt; y\)</span></p>')
        shown = renderer.render_page('<div class="arithmatex">\\[\nx^2\n\\]</div>')
        with pytest.raises(FormulaError, match=r"Undefined control sequence: \\nothing"):
            renderer.render(r"\nothing", display=False)
    finally:
        renderer.close()

    assert 'class="katex"' in page
    assert "arithmatex" not in page
    assert shown.startswith('<div class="formula"')
    assert renderer.count == 2


@needs_katex
@needs_mkdocs
@pytest.mark.slow
def test_the_whole_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """All formulas are rendered, and all links are checked."""
    assert write(tmp_path, MODULES) > 150
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        [*command, "--config-file", str(tmp_path / "mkdocs.yml")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr

    assert main(tmp_path / "site", MODULES) == 0
    assert (tmp_path / "site" / "optimizers" / "soap" / "index.html").is_file()
