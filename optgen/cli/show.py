"""Implement `optgen show`, which prints a spec, its LaTeX, its IR, or a generated file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import typer

from optgen import emit
from optgen.cli.locate_specs import is_catalogued, spec_path, specs_folder
from optgen.ir.algorithm import Algorithm
from optgen.ir.print_ir import to_text
from optgen.lowerings import LOWERINGS, Lowering
from optgen.passes.derive import derive
from optgen.passes.latex import to_latex
from optgen.passes.outline_sweeps import with_sweeps
from optgen.passes.plan import plan
from optgen.spec.errors import spec_errors
from optgen.spec.read_spec import read_base, read_spec


def source(name: str) -> str:
    """Return the spec as it was written."""
    return _read(name)[0].source


def latex(name: str) -> str:
    """Return the rule in LaTeX, as the docstring of the class has it."""
    texts: list[str] = []
    for algorithm in _with_program_functions(_with_base_rules(name)):
        with spec_errors(algorithm):
            texts.append(to_latex(algorithm))
    return "\n\n".join(texts)


def ir(name: str) -> str:
    """Return the text of each algorithm of a spec, and of its plan."""
    texts: list[str] = []
    for algorithm in _with_program_functions(_with_base_rules(name)):
        with spec_errors(algorithm):
            texts += [to_text(algorithm), to_text(plan(algorithm))]
    return "\n\n".join(texts)


def generated(name: str, lowering_name: str) -> str:
    """Return the text of the file that a lowering generates from a spec."""
    lowerings_by_name = {entry.name: entry for entry in LOWERINGS}
    if lowering_name not in lowerings_by_name:
        message = f"{lowering_name!r} is not one of {', '.join(lowerings_by_name)}"
        raise typer.BadParameter(message, param_hint="--lowering")
    lowering = lowerings_by_name[lowering_name]
    spec_algorithms = _read(name)
    candidates = (
        each for algorithm in spec_algorithms for each in _algorithms_for(algorithm, lowering)
    )
    algorithms = list(filter(lowering.applies, candidates))
    for algorithm in spec_algorithms:
        if not any(map(lowering.applies, _algorithms_for(algorithm, lowering))):
            raise typer.BadParameter(_why_no_file(algorithm, lowering))
    ruff = emit.find_ruff()
    texts: list[str] = []
    for algorithm in algorithms:
        base, catalogued = read_base(algorithm, specs_folder()), is_catalogued(algorithm)
        with spec_errors(algorithm):
            texts.append(emit.render(algorithm, lowering, ruff, base, catalogued=catalogued))
    return "\n".join(texts)


def _why_no_file(algorithm: Algorithm, lowering: Lowering) -> str:
    """Return why a lowering writes no file for an algorithm, and what to show instead."""
    name, base = algorithm.name, algorithm.base
    if reason := lowering.refusal(algorithm):
        rules = (each for each in LOWERINGS if each.content == "rule")
        others = " or ".join(each.name for each in rules if each.applies(algorithm))
        return f"{name} has no {lowering.name}: {reason}; show {others} instead"
    if lowering.content == "optimizer":
        return f"{name} is a function, so it has no optimizer: use --lowering function"
    if lowering.content == "function":
        return f"{name} is an optimizer, so it has no function: use --lowering optimizer"
    return f"{name} runs {base}'s {lowering.name}: show {base} instead"


def _with_program_functions(algorithms: Iterable[Algorithm]) -> Iterator[Algorithm]:
    """Yield each algorithm, and after it the functions of its programs."""
    for algorithm in algorithms:
        yield from algorithm.with_functions


def _algorithms_for(algorithm: Algorithm, lowering: Lowering) -> tuple[Algorithm, ...]:
    """Return an algorithm, the functions of its programs, and for C++ those of its sweeps."""
    return with_sweeps(algorithm) if lowering.name == "fused_cpu" else algorithm.with_functions


def _with_base_rules(name: str) -> Iterator[Algorithm]:
    """Yield the algorithms of a spec; a derived algorithm has the rule of its base."""
    for algorithm in _read(name):
        base = read_base(algorithm, specs_folder())
        with spec_errors(algorithm):
            complete = algorithm if base is None else derive(algorithm, base)
        yield complete


def _read(name: str) -> tuple[Algorithm, ...]:
    return read_spec(spec_path(name))
