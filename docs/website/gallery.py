"""Draw the rates of schedules as SVG, from examples/schedulers.py."""

from __future__ import annotations

import ast
import runpy
import textwrap

from website.entries import ROOT

EXAMPLE = ROOT / "examples" / "schedulers.py"
_WIDTH, _HEIGHT = 320, 120
_PAD = 8


def page() -> str:
    """Return the gallery: each schedule of the example with its curve and its code."""
    example = runpy.run_path(str(EXAMPLE))
    code = code_by_schedule()
    parts = [
        "# Schedule gallery",
        f"Each curve shows the learning rate of {example['STEPS']} steps, from a rate of 1. "
        "`preview` computes the rates, from the schedules of `examples/schedulers.py`. The code "
        "makes the schedule for an optimizer `o`; `lr` is `optgen.optim.lr_scheduler`. "
        "[Schedulers](schedulers.md) describes all of them.",
    ]
    for name in example["GALLERY"]:
        curve = svg(example["rates"](name), f"Learning rate of {name}")
        parts += [f"## {name}", curve, f"```python\n{code[name]}\n```"]
    return "\n\n".join(parts) + "\n"


def code_by_schedule() -> dict[str, str]:
    """Return the code of each schedule in the gallery: a lambda's body, or a function's."""
    text = EXAMPLE.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    code: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="GALLERY"), value=ast.Dict() as gallery):
                for key, value in zip(gallery.keys, gallery.values, strict=True):
                    assert isinstance(key, ast.Constant)
                    code[str(key.value)] = _source(text, value, functions)
    return code


def _source(text: str, value: ast.expr, functions: dict[str, ast.FunctionDef]) -> str:
    match value:
        case ast.Lambda(body=body):
            return ast.get_source_segment(text, body) or ""
        case ast.Name(id=name):
            lines = ast.get_source_segment(text, functions[name]) or ""
            shown = textwrap.dedent("\n".join(lines.splitlines()[1:]))
            called = [each for each in functions if f"{each}(" in shown]
            others = (ast.get_source_segment(text, functions[each]) or "" for each in called)
            return "\n\n\n".join([*others, shown.replace("return ", "")])
    raise ValueError(f"line {value.lineno} of the gallery is neither a lambda nor a name")


def svg(rates: list[float], title: str) -> str:
    """Return a step curve of rates between 0 and 1; each rate holds for one step."""
    step = (_WIDTH - 2 * _PAD) / len(rates)
    points: list[str] = []
    for index, rate in enumerate(rates):
        height = _HEIGHT - _PAD - rate * (_HEIGHT - 2 * _PAD)
        points += [f"{_PAD + (index + side) * step:.1f},{height:.1f}" for side in (0, 1)]
    lines = "".join(_grid_line(value) for value in (0, 0.5, 1))
    return (
        f'<svg class="schedule" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title}"><title>{title}</title>{lines}'
        f'<polyline points="{" ".join(points)}"/></svg>'
    )


def _grid_line(value: float) -> str:
    height = _HEIGHT - _PAD - value * (_HEIGHT - 2 * _PAD)
    return f'<line x1="{_PAD}" x2="{_WIDTH - _PAD}" y1="{height}" y2="{height}"/>'
