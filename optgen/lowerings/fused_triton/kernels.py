"""The kernels of one phase each: what the templates lay out of a sweep and of a finish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optgen.ir.generated_names import plural
from optgen.ir.nodes import Assign, Call, Const, Expr, Ref, assigns, expressions
from optgen.ir.plan import MatrixCall, Plan, Stream, Sweep, reads
from optgen.ir.value_kinds import Axes
from optgen.lowerings.fused_triton.expressions import variable
from optgen.lowerings.fused_triton.places import (
    needed,
    tile_places,
    tile_stores,
    uses,
)
from optgen.lowerings.fused_triton.row import Row
from optgen.lowerings.fused_triton.slots import (
    LINES,
    SMALL,
    Slots,
    made_small,
    read_by,
)
from optgen.lowerings.fused_triton.split_finishes import defined, entering
from optgen.lowerings.fused_triton.sweep import (
    flags_of,
    print_loads,
    print_numbers,
    print_stores,
    print_sweep,
    print_zeros,
)
from optgen.lowerings.python.literals import comment

Context = dict[str, Any]
_SPREAD = {Axes.ROW: "[:, :, None]", Axes.COLUMN: "[:, None, :]", Axes.MATRIX: "[:, None, None]"}
_WORK = ("shapes", "scalars", "values", "partials")
_SWEEP = ("rows", "block_tensor", *_WORK, "loss_scale", "found_inf")
ARGUMENTS = {
    "rows": "bucket.rows",
    "block_tensor": "bucket.block_tensor",
    "loss_scale": "bucket.loss_scale",
    "found_inf": "bucket.found_inf",
    "arrived": "work.arrived",
    "shapes": "work.shapes",
    "scalars": "work.scalars",
    "values": "work.values",
    "partials": "work.partials",
}
"""What a launch hands over for each argument of a kernel."""
_MASK = {Axes.ROW: "in_rows", Axes.COLUMN: "in_columns", Axes.MATRIX: "in_batch"}


@dataclass(frozen=True)
class Kernels:
    """Prints the phases of a plan.

    `addresses` are the rows of addresses in the table, in its order, with what lies between them;
    the `locals` stand at its end.
    """

    plan: Plan
    addresses: Sequence[str]
    locals: Sequence[str]
    row: Row
    slots: Slots
    by_matrix: bool

    def sweep(self, sweep: Sweep, unscales: bool) -> Context:
        """What a sweep's kernel and its tile are made of."""
        streams, small = touched(sweep), list(self._small_read(sweep))
        sums, row_sums, column_sums = (self.reduced(sweep, a) for a in (Axes.NONE, *LINES))
        context: Context = {
            "sort": "sweep",
            "rooms": [s.name for s in streams if s.role == "local" and s.stored],
            "streams": [self.place(s.name) for s in streams],
            "small": small,
            "unscales": unscales,
            "loads": [
                *print_loads([s for s in streams if s.role != "local" or not s.stored]),
                *(f"{s['name']} = tl.load({s['list']}, {s['mask']}){s['spread']}" for s in small),
                *print_numbers(self.row, sweep.body, ".to(dtype)"),
            ],
            "body": [*print_zeros(sweep.body), *print_sweep(sweep.body, self.row)],
            "stores": print_stores(streams),
            "sums": sums,
            "row_sums": row_sums,
            "column_sums": column_sums,
        }
        lines = "\n".join([*context["loads"], *context["body"], *context["stores"]])
        tile = self._tile_lines(context, self.first_slots(sweep))
        return context | tile | {"flag_values": self.flags(lines)}

    def first_slots(self, sweep: Sweep) -> Mapping[Axes, int]:
        """Return the first slot of the sums of a sweep's rows, and that of its columns."""
        kinds, sums = self.plan.kinds, [a.target for a in sweep.reductions]
        return {
            axes: self.slots.first([r for r in sums if kinds[r].axes is axes], axes)
            for axes in LINES
        }

    def flags(self, text: str) -> dict[str, str]:
        """The constexpr flags that a kernel's lines use, and how a bucket tells their values."""
        every = flags_of([s for sweep in self.plan.sweeps for s in sweep.streams])
        return {flag: value for flag, value in every.items() if uses(flag, text)}

    def _tile_lines(self, context: Context, firsts: Mapping[Axes, int]) -> Context:
        """The lines of a tile's kernel around the call of the tile."""
        sums, row_sums, column_sums = (
            [s["name"] for s in context[key]] for key in ("sums", "row_sums", "column_sums")
        )
        partials = tile_stores(sums, row_sums, column_sums, self.slots.counts, firsts)
        if sums or row_sums or column_sums:
            partials.insert(0, "partials += tl.load(shape + PARTIALS * tensors)")
        if uses("blocks", "\n".join(partials)):
            partials.insert(1, "blocks = tl.load(shape + BLOCKS * tensors)")
        pointers = [f"{s['list']} = {s['place']}" for s in context["small"]]
        masks = [s["mask"] for s in context["small"]]
        text = [*pointers, *masks, *partials]
        places = needed(tile_places(self.slots.counts), text)
        optional = {
            "shapes": self.by_matrix or bool(partials),
            "values": uses("values", "\n".join([*places, *text])),
            "partials": bool(partials),
            "loss_scale": context["unscales"],
        }
        return {
            "partials": partials,
            "places": [*places, *pointers],
            "needs_columns": uses("first_column", "\n".join(places)),
            "arguments": [n for n in _SWEEP if optional.get(n, True)],
        }

    def call(self, call: MatrixCall) -> Context:
        """What the runtime is told of a matrix word."""
        source, *rest = call.args
        assert isinstance(source, Ref)
        return {
            "sort": "call",
            "quote": list(map(comment, call.quote)),
            "word": call.op,
            "source": source.name,
            "target": call.target.name,
            "given": "".join(f"{_of_group(arg)}, " for arg in rest),
        }

    def reduced(self, sweep: Sweep, axes: Axes) -> list[Context]:
        """The reductions of a sweep that leave values with such axes."""
        return [summed(a) for a in sweep.reductions if self.plan.kinds[a.target].axes is axes]

    def place(self, name: str) -> Context:
        """What kernels call a stream's address and type, and which of the table's it is."""
        state = self.plan.algorithm.state(name)
        index = self.addresses.index(state.key if state else name)
        given = f'bucket.local_type("{name}")' if name in self.locals else f"bucket.types[{index}]"
        return {
            "list": variable(plural(name)),
            "type": f"{name.upper()}_T",
            "given_type": given,
            "address": f"(STREAMS + {index})" if index else "STREAMS",
        }

    def _small_read(self, sweep: Sweep) -> Iterator[Context]:
        """Rows, columns and numbers of matrices that a sweep reads, and where they lie."""
        made = made_small(sweep)
        for ref in dict.fromkeys(read_by(sweep)):
            axes = self.plan.kinds[ref].axes
            if axes in SMALL and ref not in made:
                yield {
                    "name": variable(ref.name),
                    "list": variable(plural(ref.name)),
                    "axes": axes,
                    "mask": _MASK[axes],
                    "spread": _SPREAD[axes],
                    "place": self.slots.place(ref, axes),
                }


def summed(stmt: Assign) -> Context:
    """What a template is told of a reduction."""
    return {
        "name": variable(stmt.target.name),
        "more": f"more_{stmt.target.name}",
        "largest": isinstance(stmt.value, Call) and stmt.value.op == "max_abs",
    }


def _of_group(arg: Expr) -> str:
    """An argument of a matrix word: the host reads it in the group."""
    match arg:
        case Ref(name):
            return f'group["{name}"]'
        case Const(value):
            return repr(value)
    raise NotImplementedError("fused Triton hands hyperparameters to a matrix word as they are")


def touched(sweep: Sweep) -> list[Stream]:
    """The streams that a sweep reads or stores: no other is worth the bandwidth.

    A name that some path gives no value keeps the one it has: that reads it, too.
    """
    made = {a.target for a in assigns(sweep.body)}
    read = {r.name for e in expressions(sweep.body) for r in reads(e) if r not in made}
    read |= {ref.name for ref in made} - defined(sweep.body)
    read |= entering(sweep.body)
    return [s for s in sweep.streams if s.stored or s.name in read or s.role == "local"]
