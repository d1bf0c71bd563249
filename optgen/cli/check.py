"""Implement `optgen check`, which reads and generates specs without writing anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from optgen import emit
from optgen.cli.locate_specs import spec_path
from optgen.cli.read_and_render import complete, read, render
from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Place, assigns
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.composition.parts import is_modifier
from optgen.spec.declare import Spec, hypers_of
from optgen.spec.errors import InternalError, SpecError
from optgen.spec.read_spec import read_spec
from optgen.spec.semantic_checks import batch_warning

_PLAIN_RULE = '''from optgen.spec import optimizer, sqrt, state, hyper


@optimizer(paper="https://example.org")
def Checked(
    own_p, own_g, own_t, /, own_v=state("own_v", role="second_moment"), *, lr=hyper(1e-3, ge=0)
):
    """A rule that any modifier can join."""
    own_v = own_v + own_g**2
    own_p = own_p - lr * own_g / (own_t + sqrt(own_v))
'''
"""A modifier is checked in a composition with this rule."""


def check(names: Sequence[str]) -> Iterator[str | SpecError | InternalError]:
    """Read and generate specs without writing anything.

    Yield a line for each correct algorithm, its warning if there is one, and the first error of
    each wrong file. Files are checked one by one: two of them may hold classes of the same name,
    since only `build` writes into one folder.
    """
    for path in dict.fromkeys(spec_path(name) for name in names):
        try:
            if is_modifier(path):
                yield _check_modifier(path)
                continue
            algorithms = read([path])
            for algorithm in algorithms:
                render(algorithm, emit.find_ruff())
        except (SpecError, InternalError) as error:
            yield error
            continue
        for algorithm in algorithms:
            yield f"{algorithm.name}: ok ({_summary(complete(algorithm))})"
            if warning := batch_warning(algorithm):
                yield str(warning)


def _check_modifier(path: Path) -> str:
    """Generate a plain rule with the modifier of a file; return a line about the modifier."""
    from optgen import modifiers  # imports torch, which the check of an optimizer does not need
    from optgen.compositions import composed_spec, errors_of_parts

    modifier = modifiers.load(path)
    try:
        spec = composed_spec(Spec("Checked", _PLAIN_RULE, "checked.py", 1), (modifier,), "Checked")
    except CompositionError as error:
        raise SpecError(Place(str(path), 1, 1), str(error), "choose other names") from None
    with errors_of_parts(spec, names_parts=False):
        (algorithm,) = read_spec(spec)
        render(algorithm, emit.find_ruff())
    hypers = ", ".join(name for name, _ in hypers_of(modifier.spec)) or "none"
    return f"{modifier.name}: ok (a modifier; hyperparameters: {hypers})"


def _summary(algorithm: Algorithm) -> str:
    """Return the states of an optimizer, or the lists that a function writes, as text."""
    if algorithm.is_function:
        written = {stmt.target.name for stmt in assigns(algorithm.rule)}
        return f"writes: {', '.join(name for name in algorithm.lists if name in written)}"
    states = ", ".join(state.key for state in algorithm.checkpoint_states()) or "none"
    programs = ", ".join(f"{p.mode} by {p.function.name}" for p in algorithm.programs)
    return f"state: {states}; {programs}" if programs else f"state: {states}"
