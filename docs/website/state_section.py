"""Show the states of an optimizer, and their bytes in each precision."""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.plan import fresh_keys_of
from website.docstrings import parse, table_cell
from website.entries import Entry, entries
from website.precisions import PRECISIONS, Precision, in_precision
from website.state_bytes import (
    TALL,
    VECTOR,
    WIDE,
    Shape,
    bytes_text,
    element_bytes_text,
    states_for_shape,
    total_size,
)
from website.tables import table

_ROWS, _COLS = 4096, 1024
_PARAMETERS = 100_000_000


def states(entry: Entry) -> str:
    """Return the keys of a parameter's state as a table."""
    doc = parse(entry.cls.__doc__)
    rows = [
        (
            f"`{i.name}`",
            f"`{i.type}`" if i.type else "",
            state_description(entry.algorithm, i.name, i.text),
        )
        for i in doc.items("State")
    ]
    if not rows:
        return "A parameter has no state."
    return table(("key in the checkpoint", "type", ""), rows)


def state_description(algorithm: Algorithm, key: str, text: str) -> str:
    """Return the description of a state for a cell of a table.

    A rule that asks whether a state is fresh sets the state's first value, which may differ from 0.
    """
    if key in fresh_keys_of(algorithm):
        text = text.replace("at first 0", "set by its first step")
    return table_cell(text)


def memory(entry: Entry) -> str:
    """Return the bytes of all states with default arguments, in each precision."""
    parts = [_intro(entry.algorithm)]
    shapes = list(_shapes(entry.algorithm))
    header = ["stored as", *(title for title, _ in shapes)]
    base, precisions = _float32_base(entry), _precisions(entry)
    rows = [_row(entry, each, shapes) for each in precisions]
    if base is not None:
        base_row = _row(base, PRECISIONS[0], shapes)
        rows = [
            (f"[{base.title}]({base.name}.md), {base_row[0]}", *base_row[1:]),
            *((f"{entry.title}, {first}", *cells) for first, *cells in rows),
        ]
    parts.append(table(header, rows))
    if base is not None:
        parts.append(_saving(base, entry))
    refusals = [
        (p.title, why) for p in precisions if isinstance(why := in_precision(entry, p), str)
    ]
    parts += [f"`{title}` is refused: {table_cell(why)}." for title, why in refusals]
    if options := _optional_states(entry.algorithm):
        parts.append(f"Further states exist if you ask for them: {options}.")
    parts.append(_outro(entry.algorithm))
    return "\n\n".join(each for each in parts if each)


def _precisions(entry: Entry) -> tuple[Precision, ...]:
    """Return the precisions of the table: not that of 8-bit states if the rule has them anyway."""
    coded = entry.algorithm.has_codes
    return tuple(each for each in PRECISIONS if not (coded and "quantized" in each.modifiers))


def _float32_base(entry: Entry) -> Entry | None:
    """Return the optimizer whose states a rule keeps in 8 bits; None if it has no such states."""
    if not entry.algorithm.has_codes:
        return None
    name = entry.name.removesuffix("_8bit")
    return next((each for each in entries() if each.name == name != entry.name), None)


def _saving(base: Entry, entry: Entry) -> str:
    """Return the bytes of both optimizers for a model."""
    before, after = (
        total_size(each.algorithm, TALL, "float32").bytes_per_element or 0 for each in (base, entry)
    )
    return (
        f"The states of {_PARAMETERS // 10**6} million parameters take "
        f"{before * _PARAMETERS / 1e6:.0f} MB with {base.title}, and "
        f"{after * _PARAMETERS / 1e6:.0f} MB with {entry.title}."
    )


def _intro(algorithm: Algorithm) -> str:
    if _has_uniform_bytes(algorithm):
        return "Bytes of state for each element of a parameter, with default arguments:"
    rank = algorithm.hyper("rank")
    of_rank = f", and \\(r\\) is the rank ({rank.default} by default)" if rank else ""
    return (
        "Bytes of state for each parameter, with default arguments. A matrix has \\(m\\) rows and "
        f"\\(n\\) columns, a vector has \\(n\\) elements{of_rank}. In brackets: the bytes "
        f"for each element of a {_ROWS} × {_COLS} matrix, or of a {_COLS} × {_ROWS} matrix where "
        "the column is for wide ones."
    )


def _has_uniform_bytes(algorithm: Algorithm) -> bool:
    """Tell whether the states of every shape take the same bytes for each element."""
    sizes = [
        total_size(algorithm, shape, "float32").bytes_per_element for shape in (TALL, WIDE, VECTOR)
    ]
    return None not in sizes and len(set(sizes)) == 1


def _shapes(algorithm: Algorithm) -> Iterator[tuple[str, Shape | None]]:
    """Yield the title and the shape of each column of the table.

    The shape is None if one column holds for every shape.
    """
    if _has_uniform_bytes(algorithm):
        yield "bytes for each element", None
        return
    facts = {(state.when or "").removeprefix("not ") for state in algorithm.states}
    if "tall" in facts:
        yield "a matrix, \\(m \\ge n\\)", TALL
        yield "a matrix, \\(m < n\\)", WIDE
    else:
        yield "a matrix", TALL
    if not _takes_only_matrices(algorithm):
        yield "a vector", VECTOR


def _takes_only_matrices(algorithm: Algorithm) -> bool:
    """Tell whether the rule's states make sense for matrices only."""
    vector_states = list(states_for_shape(algorithm, VECTOR, {}))
    return any(
        state.shape in ("row", "col") or not isinstance(state.shape, str) for state in vector_states
    ) or any(r.is_about_param for r in algorithm.requires)


def _row(
    entry: Entry, precision: Precision, shapes: list[tuple[str, Shape | None]]
) -> tuple[str, ...]:
    stored = in_precision(entry, precision)  # an algorithm, or a text why there is none
    added = f" (`{precision.modifiers}`)" if precision.modifiers else ""
    cells = [
        "refused" if isinstance(stored, str) else _cell(stored, shape, precision)
        for _, shape in shapes
    ]
    return (f"{precision.title}{added}", *cells)


def _cell(algorithm: Algorithm, shape: Shape | None, precision: Precision) -> str:
    if shape is None:
        return bytes_text(total_size(algorithm, TALL, precision.dtype).bytes_per_element or 0)
    size = total_size(algorithm, shape, precision.dtype)
    formula = rf"\({size.formula(vector=not shape.matrix)}\)"
    if not shape.matrix:
        return formula
    rows, cols = (_ROWS, _COLS) if shape.tall else (_COLS, _ROWS)
    hyper = algorithm.hyper("rank")
    rank = hyper.default if hyper and isinstance(hyper.default, int | float) else 0
    return f"{formula} ({element_bytes_text(size.at(rows, cols, int(rank)) / (rows * cols))})"


def _optional_states(algorithm: Algorithm) -> str:
    """Return the states that exist only with arguments other than the defaults."""
    usual = {
        s.key for shape in (TALL, WIDE, VECTOR) for s in states_for_shape(algorithm, shape, {})
    }
    optional = [s for s in algorithm.checkpoint_states() if s.key not in usual and not s.of_group]
    return ", ".join(f"`{s.key}` ({_condition(s)})" for s in optional)


def _condition(state: State) -> str:
    """Return the condition of a state in words."""
    when = state.when or ""
    name = when.removeprefix("not ")
    return f"without `{name}`" if name != when else f"with `{name}`"


def _outro(algorithm: Algorithm) -> str:
    """Return sentences on what the table leaves out."""
    sentences = []
    if _has_uniform_bytes(algorithm):
        single = [s.key for s in states_for_shape(algorithm, TALL, {}) if s.shape == "scalar"]
        if algorithm.step is not None and algorithm.counter == "tensor":
            single.insert(0, "step")
        if single:
            keys = ", ".join(f"`{key}`" for key in single)
            sentences.append(f"Each parameter also has {keys}, of 4 bytes each.")
    for owner, of_all in (("Each param group has", False), ("All param groups share", True)):
        shared = [f"`{s.key}`" for s in algorithm.group_states() if s.of_all is of_all]
        if shared:
            sentences.append(f"{owner} {', '.join(shared)}, one number each.")
    sentences.append(
        "Parameters and gradients are not counted. With 8 bits, parameters below 4096 elements "
        "keep float32 states ([quantized](../modifiers/quantized.md)); "
        "masters are float32 weights behind the parameters ([master](../modifiers/master.md))."
    )
    return " ".join(sentences)
