"""Write short modifiers for tests. A part of the text that a test does not name has a default."""

from __future__ import annotations

from optgen.spec.declare import Modifier, Spec

DOUBLE = "g = 2 * g"


def text(
    *body: str,
    signature: str = "g, /",
    stage: str = "clip_all",
    options: str = "",
    decorator: str = "",
    doc: str = '"""Made up."""',
    name: str = "made",
    before: str = "",
    after: str = "",
) -> str:
    """Return the text of a file with one modifier, whose lines are `body`."""
    lines = "\n".join(f"    {line}" for line in (doc, *(body or (DOUBLE,))) if line)
    decorator = decorator or f"@modifier(stage={stage!r}{options})"
    function = f"{decorator}\ndef {name}({signature}):\n{lines}"
    parts = ("from optgen.spec import *", before, function, after)
    return "\n\n".join(part for part in parts if part) + "\n"


def modifier_of_text(source: str, name: str = "made") -> Modifier:
    return Modifier(Spec(name, source, f"{name}.py", 1))


def modifier_from(*body: str, **options: str) -> Modifier:
    """Return a modifier whose text is built by `text`."""
    return modifier_of_text(text(*body, **options), options.get("name", "made"))
