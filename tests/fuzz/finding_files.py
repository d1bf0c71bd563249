"""Store findings as files: a header of comments with lowering and setting, then the spec."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import fields
from pathlib import Path

from fuzz.finding import Finding
from fuzz.trial import Setting

FOUND = Path(__file__).with_name("found")
_FIELDS = ("lowering", "kind", "message", "hypers", "shapes", "dtype", "seed", "viewed")


def write_finding(finding: Finding, folder: Path = FOUND) -> Path:
    """Write a finding to a file that is named after its lowering, kind and rule's hash."""
    digest = hashlib.sha256(finding.text.encode()).hexdigest()[:8]
    kind = finding.kind.replace(" ", "_")
    setting = finding.setting or Setting()
    values = {
        "lowering": finding.lowering,
        "kind": finding.kind,
        "message": finding.message[:300],
        "hypers": dict(setting.hypers),
        "shapes": setting.shapes,
        "dtype": setting.dtype,
        "seed": setting.seed,
        "viewed": setting.viewed,
    }
    head = "".join(f"# {name}: {value!r}\n" for name, value in values.items())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.lowering}_{kind}_{digest}.py"
    path.write_text(head + text_without_clutter(finding.text).rstrip("\n") + "\n", encoding="utf-8")
    return path


def text_without_clutter(text: str) -> str:
    """Return a rule's text without unused imports and the docstring's list of modifiers."""
    text = re.sub(r"\n\n    Modifiers:\n\n(?:    \*.*\n|      .*\n)+\s*", "", text)
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}

    def used_imports(line: re.Match[str]) -> str:
        names = [name for name in line[1].split(", ") if name in used or name == "*"]
        return f"from optgen.spec import {', '.join(names)}"

    return re.sub(r"^from optgen\.spec import (.*)$", used_imports, text, flags=re.M)


def read_finding(path: Path) -> Finding:
    """Read a finding from its file."""
    text = path.read_text(encoding="utf-8")
    header = dict(re.findall(rf"^# ({'|'.join(_FIELDS)}): (.*)$", text, re.M))
    values = {name: ast.literal_eval(value) for name, value in header.items()}
    values.setdefault("viewed", False)  # older files lack this field
    setting = Setting(**{each.name: values[each.name] for each in fields(Setting)})
    rule = re.sub(r"\A(# .*\n)+", "", text)
    return Finding(values["kind"], values["lowering"], values["message"], rule, setting)
