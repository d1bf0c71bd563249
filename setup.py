"""Tell setuptools where the packages are, and how to make a reproducible source archive.

pyproject.toml can tell neither.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import time

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

FOLDERS = {
    "optgen": "optgen",
    "optgen.specs": "specs",
    "optgen.templates": "templates",
    "optgen.generated": "generated",
}


class ReproducibleSdist(sdist):
    """Command that writes the same archive for the same files and the same SOURCE_DATE_EPOCH.

    The wheels of setuptools are reproducible already. Its source archives hold the times, owners
    and modes of this machine's files.
    """

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def without_machine_data(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.mode = 0o755 if entry.isdir() else 0o644
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = seconds, 0, 0, "", ""
            return entry

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(
                base_dir, filter=without_machine_data
            )  # adds files in the order of their names
        return path


def packages() -> list[str]:
    """Return the names of all packages: the four roots and the packages below them."""
    names = list(FOLDERS)
    for root, folder in FOLDERS.items():
        names += [f"{root}.{name}" for name in find_packages(folder)]
    return names


setup(
    packages=packages(),
    cmdclass={"sdist": ReproducibleSdist},
)
