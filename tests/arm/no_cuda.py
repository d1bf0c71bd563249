"""Make libraries in place of CUDA's, so that torch's wheel for aarch64 is imported without them.

The wheel is built for CUDA, and the libraries of CUDA take 3 GB. Steps on the CPU call none of
them, but the loader looks for their names. Every function of these libraries returns 100, which
CUDA's runtime reads as "no device".

Usage: `python no_cuda.py FOLDER_OF_TORCH_LIBRARIES OUT COMPILER`
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

_CUDA = re.compile(r"lib(cu|nccl|nvrtc|nvshmem)")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_OWNER_OR_VERSION = re.compile(r"File: (\S+)|Name: (\S+)")
_SYMBOL = re.compile(r" (UND|ABS|\d+) (\w+)(?:@+(\S+))?(?: \(\d+\))?$")

Function = tuple[str, str]
"""The name of a function and the version that is asked for, "" for none."""


def wanted_functions(libraries: list[Path]) -> dict[str, set[Function]]:
    """Return the missing libraries of CUDA, each with the functions that others ask of it.

    A function without a version goes to the library whose name comes first.
    """
    names = {library.name for library in libraries}
    needed = {found for library in libraries for found in _needed(library)}
    missing = {name for name in needed - names if _CUDA.match(name)}
    owners = {version: owner for library in libraries for version, owner in _versions(library)}
    symbols = [symbol for library in libraries for symbol in _symbols(library)]
    defined = {name for section, name, _ in symbols if section != "UND"}
    wanted: dict[str, set[Function]] = {name: set() for name in missing}
    for section, name, version in symbols:
        owner = owners.get(version, "") if version else min(missing)
        if section == "UND" and owner in missing and (version or name not in defined):
            wanted[owner].add((name, version))
    return wanted


def _needed(library: Path) -> list[str]:
    return [found[1] for found in map(_NEEDED.search, _read("--dynamic", library)) if found]


def _versions(library: Path) -> list[tuple[str, str]]:
    """Return the versions that a library asks for, each with the file that must have it."""
    found, owner = [], ""
    for line in _read("--version-info", library):
        for file, version in _OWNER_OR_VERSION.findall(line):
            owner = file or owner
            if version:
                found.append((version, owner))
    return found


def _symbols(library: Path) -> list[tuple[str, str, str]]:
    """Return section, name and version of each dynamic symbol; undefined ones have section UND."""
    lines = _read("--dyn-syms", library)
    found = [each.groups(default="") for each in map(_SYMBOL.search, lines) if each]
    return [(section, name, version) for section, name, version in found]


def _read(option: str, library: Path) -> list[str]:
    command = ["readelf", option, "--wide", str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def build(name: str, functions: set[Function], out: Path, compiler: str) -> None:
    """Build a library in a folder, with one body for all its functions."""
    by_version: dict[str, list[str]] = defaultdict(list)
    for function, version in sorted(functions):
        by_version[version].append(function)
    names = sorted({function for function, _ in functions})
    labels = [f".globl {each}\n.type {each}, %function\n{each}:" for each in names]
    source, script = out / f"{name}.s", out / f"{name}.map"
    source.write_text("\n".join([".text", *labels, "mov x0, #100", "ret", ""]))
    versions = [version for version in by_version if version]
    script.write_text(
        "".join(f"{each} {{ global: {'; '.join(by_version[each])}; }};\n" for each in versions)
    )
    options = [f"-Wl,--version-script={script}"] if versions else []
    command = [compiler, "-shared", "-nostdlib", f"-Wl,-soname,{name}", *options]
    subprocess.run([*command, "-o", str(out / name), str(source)], check=True)


def main(folder: str, out: str, compiler: str) -> None:
    """Build every missing library of CUDA into a folder."""
    Path(out).mkdir(parents=True, exist_ok=True)
    for name, functions in wanted_functions(sorted(Path(folder).glob("*.so*"))).items():
        build(name, functions, Path(out), compiler)


if __name__ == "__main__":
    main(*sys.argv[1:])
