"""Define the commands and their arguments. The other modules of this package implement them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from optgen import __version__
from optgen.emit import ToolchainError
from optgen.lowerings import LOWERINGS
from optgen.spec.errors import InternalError, SpecError

# Exit codes, which the docstring of optgen.cli describes.
STALE, USAGE, SPEC, TOOLCHAIN, INTERNAL = 1, 2, 3, 4, 5
MISSED = 1  # a comparison missed its bound

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


Specs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SPEC]...", help="Spec files, or names of the catalogue.", show_default=False
    ),
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name of the catalogue, or a spec file.")
]


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn expected errors into a message and an exit code."""
    try:
        yield
    except SpecError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(SPEC) from None
    except InternalError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(INTERNAL) from None
    except ToolchainError as error:
        typer.echo(f"optgen: {error}", err=True)
        raise typer.Exit(TOOLCHAIN) from None
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"optgen: {error.strerror}: {error.filename}", err=True)
        raise typer.Exit(USAGE) from None


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"optgen {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A compiler for PyTorch optimizers: one symbolic update rule, four lowerings."""


@app.command()
def build(
    specs: Specs = None,
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="The folder to generate into, one folder for each spec."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 and name what is stale.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="As --check, and print what would change.")
    ] = False,
) -> None:
    """Generate optimizers.

    Without SPEC, it generates all optimizers of the checkout around the current folder.
    """
    with exit_codes():
        from optgen.cli import build as command

        targets = command.find_targets(specs or [], out)
        if check or diff:
            raise typer.Exit(STALE if command.compare(targets, diff=diff) else 0)
        command.write(targets)


@app.command("list")
def list_() -> None:
    """Print the catalogue as a table."""
    with exit_codes():
        from optgen.cli import catalogue as command

        typer.echo(command.table())


@app.command()
def show(
    name: Name,
    lowering: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(lowering.name for lowering in LOWERINGS),
            help="Print this generated file instead of the rule.",
        ),
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the rule in LaTeX.")] = False,
    ir: Annotated[bool, typer.Option("--ir", help="Print the algorithm and its plan.")] = False,
) -> None:
    """Print an optimizer: its spec, LaTeX, IR, or a file.

    NAME is a name of the catalogue or a spec file.
    """
    options = [option for option in (lowering, latex, ir) if option]
    if len(options) > 1:
        raise typer.BadParameter("choose one of --lowering, --latex and --ir")
    with exit_codes():
        from optgen.cli import catalogue as command

        if lowering:
            typer.echo(command.generated(name, lowering), nl=False)
            return
        text_of: Callable[[str], str]
        text_of = command.latex if latex else command.ir if ir else command.source
        typer.echo(text_of(name).rstrip("\n"))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One snake_case word: my_rule.")],
) -> None:
    """Write a spec to start from.

    In a checkout of optgen it goes into specs/, elsewhere into the current folder.
    """
    with exit_codes():
        from optgen.cli import build as command

        path = command.write_skeleton(name)
        typer.echo(f"wrote {path}")


@app.command()
def compose(
    optimizer: Annotated[str, typer.Argument(metavar="OPTIMIZER", help="A name, or a spec file.")],
    modifiers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODIFIER]...", help='Such as ema, "clip_norm(1.0)" or mine.py.'),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the optimizer's class.")
    ] = None,
) -> None:
    """Print the spec of an optimizer with modifiers.

    Save it as a file: `optgen build FILE --out DIR` writes it as a package.
    """
    with exit_codes():
        from optgen.cli import compose as command

        typer.echo(command.spec_text(optimizer, modifiers or [], name), nl=False)


@app.command()
def check(
    specs: Annotated[list[str], typer.Argument(metavar="SPEC...", help="Spec files, or names.")],
    compiled: Annotated[
        bool, typer.Option("--compile", help="Build the C++ of each rule too, into the cache.")
    ] = False,
) -> None:
    """Check specs, and print their errors.

    It reads them and generates in memory. It writes no generated file.
    """
    with exit_codes():
        from optgen.cli import check as command

        exit_code = 0
        for outcome in command.check(specs):
            typer.echo(str(outcome), err=not isinstance(outcome, str))
            if isinstance(outcome, SpecError):
                exit_code = max(exit_code, SPEC)
            elif isinstance(outcome, InternalError):
                exit_code = INTERNAL
        if exit_code:
            raise typer.Exit(exit_code)
        if compiled:
            for line in command.compile_specs(specs):
                typer.echo(line)


@app.command("build-kernels")
def build_kernels(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC...", help="Names of the catalogue, or spec files.")
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder for the libraries.")],
    dtypes: Annotated[
        list[str], typer.Option("--dtype", help="A dtype of parameters, gradients or states.")
    ] = ["float32", "bfloat16"],  # noqa: B006 (typer copies it)
    levels: Annotated[
        list[str] | None,
        typer.Option(
            "--level",
            help="A level of processors, such as x86-64-v3 or native; else all but native.",
        ),
    ] = None,
) -> None:
    """Build C++ kernels for machines without a compiler.

    There, set OPTGEN_KERNELS to the folder. In a folder `kernels` beside generated packages they
    are found without it.
    """
    with exit_codes():
        from optgen.cli import build_kernels as command

        command.build(specs, out, dtypes, levels)


@app.command("import")
def import_(
    name: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS", help="Such as my_code.optim:Mine.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Fix an argument: --set amsgrad=True.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="The file to write the spec into.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="The longest time that the class's code runs.")
    ] = 120.0,
    gibibytes: Annotated[float, typer.Option(help="The most memory that it takes.")] = 8.0,
) -> None:
    """Read an optimizer class's step, and write its rule as a spec.

    The class's code is run, in a process of its own with a limit of time and memory. The spec is
    written only if 30 steps in float64 prove it equal to the original, for several shapes and
    settings. The command exits with 1 if it is not, or if the step cannot be said.
    """
    with exit_codes():
        from optgen.cli import import_class as command

        request = command.Request(name, settings or [], out, seconds, gibibytes)
        if not command.run(request):
            raise typer.Exit(MISSED)


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Names, such as adamw or AdamW; or spec files."),
    ] = None,
    lists: Annotated[
        list[str] | None,
        typer.Option(
            "--list",
            help="Lists of tensors: 2.5e7, 1e6, resnet50, gpt2, 2000x256, 20groups, 2000x1, thin.",
            show_default="1e6, resnet50, 2000x256",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="The tensors' dtype: float32, float64, bfloat16, float16.")
    ] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Threads for torch and for kernels.")] = 1,
    seconds: Annotated[float, typer.Option(help="Seconds of measuring on each list.")] = 1.0,
    unfused: Annotated[
        bool, typer.Option("--unfused", help="Measure our other lowerings too.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Measure torch.compile too: ten seconds or more each.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Merge the results into this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the results into this file; needs matplotlib.")
    ] = None,
) -> None:
    """Measure optimizers against torch.optim and the memory limit.

    The memory limit is a loop in C that reads and writes the same memory. A rule of your own is
    measured too: my_rule.py. Figures in brackets are of the fastest steps; all others are medians.

    The column "cold ms" is the time of a step when the caches hold other data. "of limit" is the
    speed of a step as a fraction of the limit's. The columns of torch have its time divided by
    ours.
    """
    with exit_codes():
        from optgen.cli import bench as command

        arguments = (lists or command.USUAL_LISTS, dtype, threads, seconds, unfused, compiled)
        command.run(command.Request(names or [], *arguments), json, plot)


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Names of the catalogue, such as lion; or spec files."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Compare all optimizers.")] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="package|rule",
            help="What to compare with: installed packages, or independent rules.",
            show_default="a package if one is installed, else the rule",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the rows into this file.")] = None,
    markdown: Annotated[
        list[Path] | None,
        typer.Option(help="Write the table into this page, between its two marker comments."),
    ] = None,
) -> None:
    """Compare optimizers with other implementations.

    The other implementation is the authors' package or a library, or a rule that was written
    independently in plain torch. Both take 30 steps in float64 from the same start, each with the
    gradients at its own parameters. The comparison runs in every lowering that this machine has;
    TRITON_INTERPRET=1 adds Triton's on a CPU. The command exits with 1 if a bound is missed.

    A spec file, my_rule.py, is compared with its own rule, computed in float64 by the evaluator
    that defines the language. Its lowerings run in float64 and in float32, with the defaults, and
    with each flag, choice and zero changed.
    """
    with exit_codes():
        from optgen.cli import verify as command

        if not command.run(names or [], every, reference, json, markdown or []):
            raise typer.Exit(MISSED)
