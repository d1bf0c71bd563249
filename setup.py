"""Tell setuptools what pyproject.toml cannot say: where packages are, and that an archive of the
source holds nothing of the machine that makes it.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import time

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOTS = {
    "optgen": "optgen",
    "optgen.specs": "specs",
    "optgen.templates": "templates",
    "optgen.generated": "generated",
}


class ReproducibleSdist(sdist):
    """Write the same bytes for the same files and the same SOURCE_DATE_EPOCH.

    A wheel of setuptools does so already; an archive of the source has times, owners and modes of
    this machine's files.
    """

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.mode = 0o755 if entry.isdir() else 0o644
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = seconds, 0, 0, "", ""
            return entry

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=anonymous)  # in the order of names
        return path


setup(
    packages=[p for n, d in ROOTS.items() for p in (n, *(f"{n}.{s}" for s in find_packages(d)))],
    cmdclass={"sdist": ReproducibleSdist},
)
