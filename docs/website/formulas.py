"""Render the formulas of built pages to HTML, by KaTeX in a Node process.

Pages then need no script for mathematics, and a formula that KaTeX refuses stops the build.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).with_name("katex.mjs")
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


class FormulaError(ValueError):
    """A formula that KaTeX refuses."""


class Renderer:
    """Renderer of formulas. Its process lives until `close`."""

    def __init__(self, modules: Path) -> None:
        """Start Node with the KaTeX of a `node_modules` folder."""
        self._process = subprocess.Popen(
            ["node", str(SCRIPT), str(modules / "katex" / "dist" / "katex.mjs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._html_cache: dict[tuple[str, bool], str] = {}
        self.count = 0

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def render_page(self, content: str) -> str:
        """Return the HTML of a page with its formulas rendered.

        Raises:
            FormulaError: KaTeX refuses a formula.
        """
        content = _DISPLAY.sub(lambda match: self._render_display(match[1]), content)
        return _INLINE.sub(lambda match: self._render_inline(match[1]), content)

    def _render_display(self, formula: str) -> str:
        html_ = self.render(formula, display=True)
        return f'<div class="formula" tabindex="0">{html_}</div>'

    def _render_inline(self, formula: str) -> str:
        return self.render(formula, display=False)

    def render(self, formula: str, display: bool) -> str:
        """Return the HTML of a formula in LaTeX, which may contain HTML entities."""
        text = html.unescape(formula).strip()
        key = (text, display)
        if key not in self._html_cache:
            self._html_cache[key] = self._ask(text, display)
        self.count += 1
        return self._html_cache[key]

    def _ask(self, formula: str, display: bool) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"formula": formula, "display": display}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise FormulaError(f"Node ended without an answer to {formula!r}")
        answer = json.loads(line)
        if "error" in answer:
            raise FormulaError(f"{answer['error']}: {formula!r}")
        return str(answer["html"])
