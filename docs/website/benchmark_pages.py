"""Write the pages of benchmarks, which name the machine and the command of every figure."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from optgen.bench.report import line
from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS
from website.entries import ROOT, entries
from website.markdown_sections import section
from website.speed_section import HEADER, machine, results, row
from website.tables import table

_BENCHMARKS = ROOT / "benchmarks"
_PART_TITLES = {
    "first step": "First steps of a process",
    "memory": "Memory beside parameters and states",
    "busy": "Beside another process",
    "compile": "Beside torch.compile",
    "bits": "Equal bits on one and two threads",
}
"""Titles for the parts of the benchmark suite, except the part "step"."""
_FIGURE_LINKS = {
    "compositions": "[what a composition costs](../compose.md#what-it-costs)",
    "quantized": "[what a composition costs](../compose.md#what-it-costs)",
    "low_precision": "[what a composition costs](../compose.md#what-it-costs)",
    "dtensor": "[on many machines](../distributed.md#fsdp2)",
    "cpu": "[every class](cpu.md)",
    "triton_aot": "[registers of Triton kernels](triton-registers.md)",
    "triton_speed": "[predicted speed of Triton kernels](triton-speed.md)",
}
"""Links to the figures of each script. Other scripts only print their figures."""
_KINDS = {
    "sweep": "reads or updates the elements",
    "finish": "makes numbers, rows and columns of a sweep's sums",
    "fold": "adds up partial sums before a finish",
    "scalars": "computes a tensor's numbers",
}
"""The kinds of Triton kernels."""
_SHOWN = ("fraction", "limit", "registers", "loading_kib", "instructions")
"""The columns of a kernel's prediction that the page shows."""


def index() -> str:
    """Return the overview, with the README's summary and a table of the scripts."""
    return (
        "\n\n".join(
            [
                "# Benchmarks",
                machine(),
                section(ROOT / "README.md", "How fast", "benchmarks/index.md"),
                "## The scripts",
                "Each script says at its top what it measures. None of them has run on a GPU.",
                table(("command", "measures", "figures"), _scripts()),
            ]
        )
        + "\n"
    )


def _scripts() -> Iterator[tuple[str, str, str]]:
    for path in sorted(_BENCHMARKS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(n, ast.If) and "__main__" in ast.dump(n.test) for n in tree.body):
            doc = (ast.get_docstring(tree) or "").partition("\n")[0]
            purpose = doc.partition(": `python")[0].rstrip(".:")
            figures = _FIGURE_LINKS.get(path.stem, "prints them")
            yield (f"`python benchmarks/{path.name}`", f"{purpose}.", figures)


def cpu() -> str:
    """Return the page with every figure of benchmarks/results/cpu.json."""
    parts = ["# Every class on a CPU", machine(), _lists_table(), "## Steps"]
    steps = [(cell, figures) for cell, figures in sorted(results().items()) if cell.part == "step"]
    entry_by_title = {each.title: each for each in entries()}
    for name in sorted({cell.name for cell, _ in steps}, key=str.lower):
        rows = [row(cell, figures) for cell, figures in steps if cell.name == name]
        link = f"[The rule](../{entry_by_title[name].page})." if name in entry_by_title else ""
        parts += [f"### {name}", link, table(HEADER, rows)]
    for part, title in _PART_TITLES.items():
        if of_part := [each for each in sorted(results().items()) if each[0].part == part]:
            parts += [f"## {title}", _lines(of_part)]
    return "\n\n".join(each for each in parts if each) + "\n"


def _lists_table() -> str:
    rows = [(f"`{each.name}`", each.title, f"{each.num_elements:,}") for each in LISTS.values()]
    return f"The lists of tensors:\n\n{table(('list', '', 'elements'), rows)}"


def _lines(cells: list[tuple[Cell, Figures]]) -> str:
    texts = (line(cell, figures).partition(": ")[2] for cell, figures in cells)
    return "```text\n" + "\n".join(texts) + "\n```"


def registers() -> str:
    """Return the page with the registers of Triton kernels."""
    path = _BENCHMARKS / "results" / "triton-registers.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    kernels = {name: by_device for name, by_device in record.items() if isinstance(by_device, dict)}
    devices = list(next(iter(kernels.values())))
    rows = [
        (f"`{name}`", *(_register_counts(by_device.get(device, {})) for device in devices))
        for name, by_device in sorted(kernels.items())
    ]
    return (
        "\n\n".join(
            [
                "# Registers of Triton kernels",
                f"Triton {record['triton']} compiled the kernels ahead of time, by "
                "`python benchmarks/triton_aot.py`. A cell has the registers of a thread for "
                "tensors in float32 and in bfloat16. **No kernel has run on a GPU.** Other dtypes "
                "are in `benchmarks/results/triton-registers.json`.",
                table(("kernel", *devices), rows),
            ]
        )
        + "\n"
    )


def _register_counts(by_case: dict[str, list[int]]) -> str:
    shown = [case for case in ("float32", "bfloat16") if case in by_case]
    return ", ".join(str(by_case[case][0]) for case in shown) or "-"


def predicted_speed() -> str:
    """Return the page with the predicted speed of Triton kernels: counts, and the slow ones."""
    path = _BENCHMARKS / "results" / "triton-speed.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    rows = {
        name: dict(zip([*record["columns"][:-1], "reason"], row, strict=True))
        for name, row in record["rows"].items()
    }
    slow = {name: row for name, row in rows.items() if row["reason"]}
    kinds = {kind: [r for r in rows.values() if r["kind"] == kind] for kind in _KINDS}
    by_kind = [
        (
            f"{kind}: {_KINDS[kind]}",
            str(len(of_kind)),
            str(sum(not row["reason"] for row in of_kind)),
            str(min(row["fraction"] for row in of_kind)),
        )
        for kind, of_kind in kinds.items()
        if of_kind
    ]
    slow_rows = [
        (f"`{name}`", *(str(row[column]) for column in _SHOWN), row["reason"])
        for name, row in slow.items()
    ]
    return (
        "\n\n".join(
            [
                "# Predicted speed of Triton kernels",
                "**A prediction: no kernel has run on a card.** "
                "`python benchmarks/triton_speed.py` "
                f"compiles every generated kernel for an H100 with Triton {record['triton']}, and "
                "reads from its machine code how long a block takes, how many blocks a "
                "multiprocessor holds, and how many instructions issue "
                "([0090](../decisions/0090-what-a-model-of-sweeps-predicts.md)). A row is for one "
                "kernel, and parameters in float32 or in bfloat16; kernels that sweep matrices in "
                "tiles have a row more for several tile shapes. The fraction of a sweep is that of "
                "a copy's speed. The fraction of another kernel is what it leaves of the speed of "
                "the sweep beside it, for one tensor of 67 million elements.",
                table(("kind", "rows", f"at least {record['enough']}", "least"), by_kind),
                f"## Below {record['enough']}",
                table(
                    ("kernel", *(column.replace("_", " ") for column in _SHOWN), "reason"),
                    slow_rows,
                ),
                "\n".join(f"* *{key}*: {text}." for key, text in record["reasons"].items()),
                "All rows are in `benchmarks/results/triton-speed.json`.",
            ]
        )
        + "\n"
    )
