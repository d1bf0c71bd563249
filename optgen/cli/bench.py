"""Implement `optgen bench`, which compares steps with torch.optim and with the memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import typer

from optgen.bench import report, results
from optgen.bench.measure import Budget
from optgen.bench.report import PANELS, draw
from optgen.bench.results import Cell, Results
from optgen.bench.roofline import Access, Traffic
from optgen.bench.suite import Suite, combinations
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import CLASSES, USER_CLASSES
from optgen.cli.catalogue import columns, spec_path, specs_folder
from optgen.contract.states import Shape
from optgen.emit import ToolchainError
from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes
from optgen.ir.nodes import assigns, expressions
from optgen.ir.plan import Finish, MatrixCall, Plan, Stream, Sweep, reads
from optgen.jit import load
from optgen.passes.plan_rule import plans, why_uncut
from optgen.passes.prepare_for_kernels import zero_gradients
from optgen.passes.prepare_rule import derive
from optgen.runtime.toolchain.compiler import CompileError
from optgen.runtime.toolchain.library_cache import NoCompilerError
from optgen.spec.read_spec import read_base, read_spec
from optgen.spec.source import module_name

DTYPES = ("float32", "float64", "bfloat16", "float16")
USUAL_LISTS = ("1e6", "resnet50", "2000x256")
_COMPILED_LIST = "1e6"  # torch.compile takes ten seconds for one tensor, and minutes for many


@dataclass(frozen=True)
class Request:
    """Arguments of the command line."""

    names: Sequence[str] = ()
    lists: Sequence[str] = USUAL_LISTS
    dtype: str = "float32"
    threads: int = 1
    seconds: float = 1.0
    unfused: bool = False
    compiled: bool = False

    def cells(self) -> list[Cell]:
        """Return the cells to measure, after checking the arguments."""
        names = list(dict.fromkeys(map(_class_name, self.names))) or CLASSES
        for tensors in self.lists:
            if tensors not in LISTS:
                raise typer.BadParameter(f"no list {tensors}; there are {', '.join(LISTS)}")
        if self.dtype not in DTYPES:
            raise typer.BadParameter(f"no dtype {self.dtype}; there are {', '.join(DTYPES)}")
        settings = (self.lists, is_memory_bound, [self.dtype], [self.threads])
        cells = list(combinations("step", names, *settings))
        if self.compiled:
            # The process that compiles imports classes of the catalogue only.
            catalogue_names = [name for name in names if name not in USER_CLASSES]
            settings = ([_COMPILED_LIST], *settings[1:])
            cells += combinations("compile", catalogue_names, *settings)
        return cells

    def suite(self) -> Suite:
        """Return the suite that measures the cells."""
        return Suite(traffic, Budget(self.seconds), self.unfused)


def run(request: Request, json: Path | None, plot: Path | None) -> None:
    """Measure with a progress bar, print tables, and write the files that the user wants."""
    if plot and find_spec("matplotlib") is None:
        raise ToolchainError("matplotlib is not installed: pip install matplotlib")
    try:
        figures_by_cell = measure(request.suite(), request.cells())
    except (NoCompilerError, CompileError) as error:
        raise ToolchainError(str(error)) from None
    typer.echo("\n".join(tables(figures_by_cell)))
    if json:
        results.merge(json, figures_by_cell)
        typer.echo(f"results: {json}")
    if plot:
        is_drawn = draw(figures_by_cell, plot, request.dtype, request.threads)
        no_picture_message = (
            f"no picture: it shows steps beside torch's, on the lists {', '.join(PANELS)}"
        )
        typer.echo(f"picture: {plot}" if is_drawn else no_picture_message)


def measure(suite: Suite, cells: Sequence[Cell]) -> Results:
    """Measure cells, and show the progress."""
    figures_by_cell: Results = {}
    with typer.progressbar(
        cells, item_show_func=lambda cell: str(cell or ""), file=typer.get_text_stream("stderr")
    ) as bar:
        for cell in bar:
            figures_by_cell[cell] = suite.run(cell)
    return figures_by_cell


def tables(figures_by_cell: Results) -> Iterable[str]:
    """Yield a table of the steps, then a line for each cell of another part."""
    if any(cell.part == "step" for cell in figures_by_cell):
        yield columns(report.steps_table(figures_by_cell))
    yield from (
        report.line(cell, figures)
        for cell, figures in figures_by_cell.items()
        if cell.part != "step"
    )


def is_memory_bound(name: str) -> bool:
    """Tell whether memory limits a class's step: it does unless the step multiplies matrices."""
    return traffic(name) is not None


def _class_name(name: str) -> str:
    """Return the name of the class that an argument means: adamw, AdamW, or a spec file.

    A class that is not in `CLASSES` is loaded: one of a spec file, or one that torch lacks.
    """
    for each in CLASSES:
        if module_name(name) == module_name(each):
            return each
    return _load_class(name)


def _load_class(path: str) -> str:
    """Load the class of a spec file for the benchmark, and return its name."""
    cls = load(spec_path(path))
    if cls.rule.gradient == "sparse_only":
        raise typer.BadParameter(
            f"{path}: dense gradients are measured, and this class takes sparse ones"
        )
    if cls.rule.needs_inputs:
        input_names = ", ".join(state.step_argument for state in cls.rule.inputs)
        raise typer.BadParameter(f"{path}: a step needs {input_names}, and the benchmark has none")
    if USER_CLASSES.setdefault(cls.__name__, cls) is not cls:
        raise typer.BadParameter(f"{path}: two of these files hold a class {cls.__name__}")
    return str(cls.__name__)


_SHAPE_BY_AXES: dict[Axes, Shape] = {Axes.ROW: "row", Axes.COLUMN: "col"}


@cache
def traffic(name: str) -> tuple[Traffic, ...] | None:
    """Return the memory traffic of a class's step, for each plan of its rule.

    Return None if the rule multiplies matrices, because memory does not limit such a step.
    """
    source = USER_CLASSES[name].spec if name in USER_CLASSES else spec_path(name)
    (algorithm,) = (each for each in read_spec(source) if each.name == name)
    base = read_base(algorithm, specs_folder())
    return traffic_of(algorithm if base is None else derive(algorithm, base))


def traffic_of(algorithm: Algorithm) -> tuple[Traffic, ...] | None:
    """Return the memory traffic of a step of an algorithm, or None if it multiplies matrices."""
    all_plans = list(map(zero_gradients, plans(algorithm)))
    matrix_calls = (
        phase for plan in all_plans for phase in plan.phases if isinstance(phase, MatrixCall)
    )
    if any(matrix_calls) or why_uncut(algorithm):
        return None
    return tuple(Traffic(tuple(_accesses(plan)), plan.facts) for plan in all_plans)


def _accesses(plan: Plan) -> Iterator[tuple[Access, ...]]:
    """Yield the tensors that each phase accesses.

    A sweep reads streams, rows and columns. A finish updates row and column states. Sums, and
    values that only the next sweep reads, need no memory traffic.
    """
    for phase in plan.phases:
        if isinstance(phase, Sweep):
            yield (*map(_stream_access, phase.streams), *_row_and_column_reads(plan, phase))
        elif isinstance(phase, Finish):
            updates = tuple(_row_and_column_updates(plan, phase))
            if updates:
                yield updates


def _stream_access(stream: Stream) -> Access:
    if stream.state:
        key = stream.state.key
    else:
        key = stream.name if stream.role == "local" else stream.role
    return Access(key, stored=stream.stored, when=stream.when)


def _row_and_column_reads(plan: Plan, sweep: Sweep) -> Iterator[Access]:
    """Yield the rows and columns that a sweep reads."""
    assigned = {stmt.target.name for stmt in assigns(sweep.body)}
    refs = (ref for expr in expressions(sweep.body) for ref in reads(expr))
    axes = {ref.name: plan.kinds[ref].axes for ref in refs if ref.name not in assigned}
    keys = {state.symbol: state.key for state in plan.algorithm.factor_states()}
    for name, axis in axes.items():
        if axis in _SHAPE_BY_AXES:
            yield Access(keys.get(name, name), shape=_SHAPE_BY_AXES[axis])


def _row_and_column_updates(plan: Plan, finish: Finish) -> Iterator[Access]:
    """Yield the row and column states that a finish updates."""
    assigned = {stmt.target.name for stmt in assigns(finish.body)}
    for state in plan.algorithm.factor_states():
        if state.symbol in assigned:
            yield Access(state.key, stored=True, shape=state.shape)
