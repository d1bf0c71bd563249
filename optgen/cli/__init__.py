"""The command line.

Exit codes: 0 ok, 1 stale files or a missed bound, 2 wrong usage, 3 error in a spec, 4 a tool is
missing or fails, 5 defect of optgen.
"""

import re
import sys
import warnings

from optgen import __version__

BUILD_EXTRA = ("jinja2>=3.1", "ruff==0.17.5", "sympy>=1.13", "typer>=0.16")  # as in pyproject.toml


def main() -> None:
    """Run `optgen`. If the extra `build` is not installed, print what to install."""
    if sys.argv[1:] == ["--version"]:  # without torch, which takes a second to import
        print(f"optgen {__version__}")
        return
    # Torch warns about this in every process without NumPy, and no command needs NumPy.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
    try:
        from optgen.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in {re.split("[=>]", tool)[0] for tool in BUILD_EXTRA}:
            raise
        tools = " ".join(f"'{tool}'" for tool in BUILD_EXTRA)
        print(f"optgen: {missing} is not installed: python -m pip install {tools}", file=sys.stderr)
        raise SystemExit(4) from None
    app(prog_name="optgen")
