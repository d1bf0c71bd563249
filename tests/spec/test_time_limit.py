"""Test that a spec from a stranger takes little time and memory: an answer comes, or an error."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable

import pytest
from spec_texts import LR, UPDATE, read, spec

from optgen import emit
from optgen.spec import errors
from optgen.spec.errors import SpecError, TooSlowError, limited_time, located_errors, spec_errors

MAX_SECONDS = 3 * errors.MAX_SECONDS
MAX_BYTES = 2**29


def tower(operation: str, height: int, start: str = "lr * t") -> str:
    """Return a spec that computes the same operation of a number again and again.

    Its last value weights a mean, for which the compiler compares coefficients.
    """
    steps = [f"x = {operation}"] * height
    mean = ["m = x * m + (1 - x) * g", "p = p - lr * m"]
    return spec(f"x = {start}", *steps, *mean, states='m=state("m")')


def flags(number: int, each: str, states: bool = False) -> str:
    """Return a spec with many flags, and lines for each of them."""
    names = [f"h{i}" for i in range(number)]
    lines = [line.format(i=i) for i in range(number) for line in each.splitlines()]
    declared = ", ".join(f's{i}=state("k{i}", when="h{i}")' for i in range(number))
    hypers = ", ".join([LR, *(f"{name}=flag(False)" for name in names)])
    return spec(UPDATE, *lines, hypers=hypers, states=declared if states else "")


def helpers(height: int) -> str:
    """Return a spec whose helpers double the rule with each of them."""
    calls = [f"def h{i}(x):\n    return h{i - 1}(h{i - 1}(x))" for i in range(1, height)]
    definitions = "\n\n".join(["def h0(x):\n    return x * x", *calls])
    return spec(f"p = p - lr * h{height - 1}(g)", before=definitions)


OPERATIONS = (
    *("2**x", "x**x", "x**-x", "(x + t)**7", "x * x", "x * (x + 1)", "x / (1 + 1 / x)"),
    *("exp(x)", "exp(x) * exp(-x) + x", "log(x + log(x + 1)) * x", "sqrt(x + 1 / (1 + x))"),
    *("abs(x) + x", "maximum(x, minimum(x, t) * x)", "where(x > 1, x * x, x + 1)"),
)
NESTED = "\n\n".join(["C0 = (1, 2)", *(f"C{i} = (C{i - 1}, C{i - 1})" for i in range(1, 60))])
WORK: dict[str, str] = {
    **{f"a tower of {op}": tower(op, 40) for op in OPERATIONS},
    "powers of two": tower("2**x", 6, "2**t"),
    "a power that SymPy would compute": tower("(1e300 + x)**(1e300 + x)", 1, "t - t"),
    "a power with a fraction": tower("(1.0000001 + x)**(1e15 + x)", 1, "t - t"),
    "a product of sums": tower(" * ".join(f"(lr + {i} * t + x)" for i in range(20)), 1),
    "products of elements": spec(*(f"g = g * (g + {i})" for i in range(200)), UPDATE),
    "sums of elements": spec(*(f"g = g + p * {i}" for i in range(200)), UPDATE),
    "long digits": spec(f"p = p - 0.{'1' * 100_000} * lr * g"),
    "a long whole number": spec(f"p = p - 0x{'f' * 100_000} * lr * g"),
    "a long decimal number": spec(f"p = p - {'9' * 4_000} * lr * g"),
    "a large exponent": spec("p = p - 1e99999999 * lr * g"),
    "tuples in tuples": spec("p = p - lr * c[0] * g", hypers=f"{LR}, c=hyper(C59)", before=NESTED),
    "a long tuple": spec("p = p - lr * c[0] * g", hypers=f"{LR}, c=hyper(({'1, ' * 20_000}))"),
    "long brackets": spec(f"p = p - {'(' * 90}lr{')' * 90} * g"),
    "many minus signs": spec(f"p = p - {'-' * 50_000}lr * g"),
    "a long text": spec(hypers=f'{LR}, c=flag(False, about="{"{" * 90_000}")'),
    "a long docstring": spec(doc=f'"""{"word " * 30_000}"""'),
    "long names": spec(f"p = p - {'y' * 60_000} * g", hypers=f"{'z' * 60_000}=hyper(1)"),
    "helpers that double": helpers(12),
    "helpers in a row": spec(
        "p = p - lr * h200(g)",
        before="\n\n".join(
            [
                "def h0(x):\n    return x",
                *(f"def h{i}(x):\n    return h{i - 1}(x)" for i in range(1, 201)),
            ]
        ),
    ),
    "branches": flags(60, "if h{i}:\n    p = p - lr * g"),
    "states that flags create": flags(24, "if h{i}:\n    s{i} = s{i} + g\n    p = p - s{i}", True),
    "branches on numbers": spec(*(f"if t > {i}:\n        p = p * t" for i in range(150)), UPDATE),
    "elif": spec(
        "if t > 0:", f"    {UPDATE}", *(f"elif t > {i}:\n        p = g" for i in range(1, 90))
    ),
    "reductions": spec(*["g = g / norm(g)"] * 70, UPDATE),
    "many hyperparameters": spec(
        UPDATE,
        *(f"p = p - h{i} * g" for i in range(200)),
        hypers=", ".join([LR, *(f"h{i}=hyper(1)" for i in range(200))]),
    ),
    "many states": spec(
        *(f"s{i} = s{i} + lr * g\n    p = p - s{i}" for i in range(150)),
        states=", ".join(f's{i}=state("k{i}")' for i in range(150)),
    ),
}


def in_child(work: Callable[[], str], seconds: int = MAX_SECONDS) -> str:
    """Return the result of a function in another process with a limit of time and memory.

    The kernel ends a process that takes more CPU time, even in the middle of a call of C code.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds + 20, seconds + 20))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(write_end, f"{grown} {result}".encode(errors="replace")[:4000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status), f"the compiler ran for {seconds} seconds"
    grown, _, result = text.partition(" ")
    assert int(grown) * 1024 < MAX_BYTES, f"the compiler took {int(grown) // 1024} MiB"
    return result


def compile_text(text: str) -> str:
    """Read a spec and generate its files; return "ok" or the SpecError."""
    try:
        algorithm = read(text)
        with spec_errors(algorithm):
            emit.render_all(algorithm, None)
    except SpecError as error:
        return str(error)
    return "ok"


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("case", WORK)
def test_the_compiler_ends_with_files_or_with_a_place_and_a_hint(case: str) -> None:
    result = in_child(lambda: compile_text(WORK[case]))
    assert result == "ok" or ("made.py:" in result and "  hint: " in result), result


def test_work_without_end_is_stopped_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "MAX_SECONDS", 0.2)
    algorithm = read(spec("g = 2 * g", UPDATE))
    statement = algorithm.rule[1]
    handler = signal.getsignal(signal.SIGVTALRM)

    def never_ends(stmt: object) -> None:
        while True:
            pass

    with (
        pytest.raises(SpecError, match="seconds, and stopped here") as caught,
        located_errors(algorithm.place, algorithm.source),
    ):
        never_ends(statement)
    assert caught.value.place == algorithm.rule[1].place
    assert signal.getsignal(signal.SIGVTALRM) is handler
    assert not any(signal.getitimer(signal.ITIMER_VIRTUAL))


def test_a_limit_inside_another_changes_nothing() -> None:
    with limited_time():
        with limited_time():
            pass
        assert any(signal.getitimer(signal.ITIMER_VIRTUAL))


def test_another_thread_reads_specs_without_a_timer() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(read(spec()).name))
    thread.start()
    thread.join()
    assert found == ["Made"]
    assert issubclass(TooSlowError, Exception)
