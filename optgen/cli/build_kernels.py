"""Implement `optgen build-kernels`, which builds C++ kernels for machines without a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import typer

from optgen.cli.catalogue import shorten, spec_path
from optgen.emit import ToolchainError
from optgen.prebuilt_kernels import build_kernels
from optgen.runtime.toolchain.compiler import CompileError
from optgen.runtime.toolchain.library_cache import NoCompilerError


def build(
    specs: Sequence[str], out: Path, dtypes: Sequence[str], levels: Sequence[str] | None
) -> None:
    """Build the kernels of these specs; print a line for each library, and one about the folder.

    Raises:
        typer.BadParameter: A dtype or a level is unknown, or a rule has no kernel.
        ToolchainError: There is no compiler, or it made no library.
        SpecError: A spec has a mistake.
    """
    paths = [spec_path(name) for name in specs]
    known = [_dtype(name) for name in dtypes]
    try:
        build_kernels(paths, out, dtypes=known, levels=levels, report=_print_size)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except (NoCompilerError, CompileError) as error:
        raise ToolchainError(str(error)) from None
    typer.echo(f"set OPTGEN_KERNELS={out.absolute()} where there is no compiler")


def _print_size(path: Path) -> None:
    typer.echo(f"{shorten(path)} ({path.stat().st_size / 1024:.0f} KiB)")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise typer.BadParameter(f"torch has no dtype {name!r}")
    return dtype
