"""What was measured, as text."""

from optgen.bench.results import Cell, Figures
from optgen.bench.variants import LIMIT, OURS


def line(cell: Cell, figures: Figures) -> str:
    """One cell: our time, what fraction of the limit that is, and how many times longer torch's."""
    ours = figures[OURS]
    parts = [f"{cell}: {_time(ours['median'])}"]
    if LIMIT in figures:
        limit = figures[LIMIT]
        ratios = [limit[key] / ours[key] for key in ("median", "min")]
        parts.append("{:.2f} of the limit ({:.2f})".format(*ratios))
    for variant, theirs in figures.items():
        if variant not in (OURS, LIMIT):
            parts.append(f"{variant} x{theirs['median'] / ours['median']:.1f}")
    return " | ".join(parts)


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms"
