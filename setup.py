"""The one thing pyproject.toml cannot say: find packages in four roots, three of them renamed."""

from setuptools import find_packages, setup

ROOTS = {
    "optgen": "optgen",
    "optgen.specs": "specs",
    "optgen.templates": "templates",
    "optgen.generated": "generated",
}
setup(packages=[p for n, d in ROOTS.items() for p in (n, *(f"{n}.{s}" for s in find_packages(d)))])
