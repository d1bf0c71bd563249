"""The command line. Exit codes: 0 ok, 1 stale, 2 usage, 3 an error in a spec, 4 toolchain."""

import sys

_EXTRA = ("jinja2", "sympy", "typer")


def main() -> None:
    """Run `optgen`; without the extra `build`, say what to install."""
    try:
        from optgen.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        message = f"optgen: {error.name} is not installed: pip install 'optgen[build]'"
        print(message, file=sys.stderr)
        raise SystemExit(4) from None
    app(prog_name="optgen")
